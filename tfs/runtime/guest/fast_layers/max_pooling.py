"""Max pooling by torch's kernel for images stored pixel by pixel, which is the quick one.

If an image is stored channel by channel, as in nearly every model, torch pools channel
by channel and element by element. If it is stored pixel by pixel, torch takes a vector
of channels at once. For 64 channels of 112x112 that takes 1.4 instead of 6.6 ms,
including the conversion both ways, which saves an eighth of the time of a ResNet-18.
The operator is the same, and a maximum does not round, so every bit is the same, also
for NaNs and signed zeros.

Nothing is kept, and only the tensors of the call are used. oneDNN's pooling takes half
of that time again, but does not say what happens to a NaN.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Final

import torch
from torch._jit_internal import is_scripting
from torch.nn import functional

from tfs.runtime.guest.fast_layers.plain_call import has_own_forward, is_plain_call

# bfloat16 is left out, because a NaN would come out as another NaN.
_DTYPES: Final = frozenset({torch.float32, torch.float64, torch.float16})
# Below either number the copies cost what the kernel saves; measured with AVX-512.
_LEAST_CHANNELS: Final = 8
_LEAST_ELEMENTS: Final = 1 << 14

_OPERATOR: Final = torch.ops.aten.max_pool2d.default


def quicken_modules(model: torch.nn.Module) -> None:
    """Has the model's own ``MaxPool2d`` modules pool like :func:`max_pool2d`.

    Subclasses, and modules whose ``forward`` was replaced, stay as they are. A
    quickened module can be copied, pickled, scripted, traced and exported as before.
    """
    for module in torch.nn.Module.modules(model):
        is_plain = type(module) is torch.nn.MaxPool2d and not module.return_indices
        if is_plain and not has_own_forward(module):
            # Bound, so that a copy of the module pools by its own settings.
            vars(module)["forward"] = types.MethodType(forward, module)


def quicken_graph(program: torch.fx.GraphModule) -> bool:
    """Has a program's max pooling done by :func:`max_pool2d`.

    Returns whether the program must be recompiled.
    """
    nodes = program.graph.find_nodes(op="call_function", target=_OPERATOR)
    for node in nodes:
        node.target = max_pool2d
    return bool(nodes)


def max_pool2d(
    images: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Returns the same as torch's operator of that name: same bits, same strides."""
    quickly = _pays(images)
    if quickly:
        images = images.contiguous(memory_format=torch.channels_last)
    pooled: torch.Tensor = _OPERATOR(
        images, kernel_size, stride, padding, dilation, ceil_mode
    )
    return pooled.contiguous() if quickly else pooled


def forward(
    self: torch.nn.MaxPool2d,
    input: torch.Tensor,  # noqa: A002 - torch's name, and models use it
) -> torch.Tensor:
    """``MaxPool2d.forward`` of a quickened module, which pickles by this name."""
    if is_scripting():  # compiles this branch alone
        pooled = functional.max_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
        )
    elif self.return_indices or not _pays(input):
        pooled = torch.nn.MaxPool2d.forward(self, input)
    else:
        images = input.contiguous(memory_format=torch.channels_last)
        pooled = torch.nn.MaxPool2d.forward(self, images).contiguous()
    result: torch.Tensor = pooled
    return result


def _pays(images: torch.Tensor) -> bool:
    """Tells whether this is a plain call on a tensor for which the copies pay."""
    return (
        is_plain_call(images)
        and images.dim() == 4
        and images.numel() >= _LEAST_ELEMENTS
        and images.shape[1] >= _LEAST_CHANNELS
        and images.dtype in _DTYPES
        and images.layout is torch.strided
        and images.is_contiguous()
    )
