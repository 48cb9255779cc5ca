"""Convolutions that keep their weights in the order in which oneDNN wants them.

A convolution's kernel takes its weights in blocks of channels. torch puts them into
that order in every call and drops the result afterwards; for the 45 MB of a ResNet-18
that is 4 to 6 of the 40 ms that one image takes. Here each layer keeps its weights in
blocks and uses torch's own operators for them (``mkldnn_prepacked``), which call the
same kernel on the same elements, so that every bit is the same. This is checked with
the first images of every shape, which are computed in both ways.

The blocks are a second copy of the weights, in this process only. So this is for a
process in which a version is loaded once; several workers would each have a copy, while
they share one now.

A layer uses its blocks only while its weights are those that the blocks were made from.
They lie in a private mapping of the version's sealed file: whoever writes to them, by
whatever alias, gets pages of its own for it, and the system says which. The system is
asked again only after page faults, which are rare while a model serves. Weights
anywhere else are left alone.

Weights in the order of ``mkldnn_reorder_conv2d_weight`` are for another kernel, which
adds in another order and so gives other bits.
"""

from __future__ import annotations

import resource
import types
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeGuard

import torch
from torch import nn
from torch._jit_internal import is_scripting
from torch.nn import functional

from tfs.runtime.guest.fast_layers.plain_call import has_own_forward, is_plain_call
from tfs.runtime.guest.sealed_file import num_written_pages_at
from tfs.runtime.guest.weights.weight_places import FindOffset

_State = Mapping[str, Any]
"""A module's ``__dict__``."""

KEPT: Final = "_tfs_packed_weight"
"""Key in a quickened layer's ``__dict__`` under which it has its :class:`PackedWeight`.
"""

LEAST_BYTES: Final = 256 << 10
"""Smallest weights that are packed: reordering smaller ones takes only microseconds."""

_MOST_SHAPES: Final = 64
"""Most shapes of images that are compared and remembered; images of other shapes go to
torch."""

# For smaller images torch does not use oneDNN.
_LEAST_ELEMENTS: Final = 20_480

_theirs: Final = (nn.Conv2d.forward, nn.Conv2d._conv_forward, functional.conv2d)
_operators: Final = torch.ops.mkldnn_prepacked
_is_onednn_on = torch._C._get_mkldnn_enabled
_conv2d = torch.conv2d


def is_available() -> bool:
    """Tells whether this torch has the operators."""
    return bool(torch._C._has_mkldnn) and hasattr(_operators, "conv2d_run")


def quicken_convolutions(model: nn.Module, find_offset: FindOffset) -> None:
    """Has the model's own ``Conv2d`` modules with many weights keep them in blocks.

    That applies to modules whose weights lie in the version's file, according to
    ``find_offset``. Nothing is kept before a layer is called. Subclasses, and modules
    whose ``forward`` was replaced, stay as they are. A quickened module can be copied,
    pickled, scripted, traced and exported as before; what it keeps is not copied.
    """
    if not is_available():
        return
    if (nn.Conv2d.forward, nn.Conv2d._conv_forward, functional.conv2d) != _theirs:
        return  # the model, or some library, has replaced torch's own
    for module in nn.Module.modules(model):
        if (
            type(module) is nn.Conv2d
            and not has_own_forward(module)
            and module.weight.nbytes >= LEAST_BYTES
            and find_offset(module.weight.untyped_storage()) is not None
        ):
            vars(module)[KEPT] = PackedWeight(module.weight.data_ptr())
            # Bound, so that a copy of the module convolves by its own weights.
            vars(module)["forward"] = types.MethodType(forward, module)


def forward(
    self: nn.Conv2d,
    input: torch.Tensor,  # noqa: A002 - torch's name, and models use it
) -> torch.Tensor:
    """``Conv2d.forward`` of a quickened module, which pickles by this name."""
    if is_scripting():  # compiles this branch alone
        scripted: torch.Tensor = self._conv_forward(input, self.weight, self.bias)
        return scripted
    else:  # noqa: RET505 - what follows a return would be compiled
        if is_plain_call(input):
            made = convolve(vars(self), input)
            if made is not None:
                return made
        plainly: torch.Tensor = _theirs[0](self, input)
        return plainly


def convolve(state: _State, images: torch.Tensor) -> torch.Tensor | None:
    """Returns the output of a quickened layer; None if torch should compute it.

    Args:
        state: ``__dict__`` of the layer.
        images: Input of a plain call.

    """
    kept: PackedWeight | None = state.get(KEPT)
    return None if kept is None else kept.convolve(state, images)


class _Packed(NamedTuple):
    """Weights in blocks, and what they were made from. Immutable."""

    operator_context: Any
    weight: torch.Tensor
    bias: torch.Tensor | None
    settings: tuple[Any, ...]
    address: int
    size_bytes: int
    num_changes: int
    fp32_precision: object


class PackedWeight:
    """The weights in blocks of one layer. Thread-safe; a copy of it keeps nothing.

    Several calls at the same time may each make them; those of the last one stay.

    Args:
        address: Address of the weights in the version's file; 0 if they are not there.

    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_is_given_up",
        "_num_faults",
        "_packed",
        "_shapes",
    )

    def __init__(self, address: int = 0) -> None:
        self._address = address
        self._packed: _Packed | None = None
        self._shapes: frozenset[torch.Size] = frozenset()  # with the same bits
        self._num_faults = (
            -1
        )  # page faults of the process when the weights were last checked
        self._is_given_up = False

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[()]]:
        return PackedWeight, ()

    @property
    def is_kept(self) -> bool:
        """Whether there are weights in blocks."""
        return self._packed is not None

    def convolve(self, state: _State, images: torch.Tensor) -> torch.Tensor | None:
        """See :func:`convolve`."""
        if self._is_given_up or not _is_for_onednn(images):
            return None
        packed = self._packed
        if packed is None:
            packed = self._pack(state, images)
            if packed is None:
                self._give_up()
                return None
        if not self._is_unchanged(packed, state):
            self._give_up()
            return None
        if images.shape not in self._shapes:
            return self._compare(packed, images)
        made: torch.Tensor = _operators.conv2d_run(images, packed.operator_context)
        return made

    def _pack(self, state: _State, images: torch.Tensor) -> _Packed | None:
        settings = _settings_of(state)
        parameters = state["_parameters"]
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if (
            settings is None
            or "bias" not in parameters
            or not _is_packable(weight)
            or weight.data_ptr() != self._address
        ):
            return None
        num_changes = weight._version
        # Read before the copy, so that the next check finds a change during it.
        self._num_faults = -1
        stride, padding, dilation, groups = settings
        try:
            context = _operators.conv2d_prepack(
                *(weight, bias, stride, padding, dilation, groups),
                *(images.shape, "none"),
            )
        except RuntimeError:
            return None  # there may be no memory for it
        return _Packed(
            context,
            weight,
            bias,
            settings,
            weight.data_ptr(),
            weight.nbytes,
            num_changes,
            _fp32_precision(),
        )

    def _is_unchanged(self, packed: _Packed, state: _State) -> bool:
        parameters, weight = state["_parameters"], packed.weight
        if (
            parameters.get("weight") is not weight
            or parameters.get("bias") is not packed.bias
            or weight._version != packed.num_changes
            or weight.data_ptr() != packed.address
            or _settings_of(state) != packed.settings
            or not _is_onednn_on()
            or _fp32_precision() != packed.fp32_precision
        ):
            return False
        num_faults = _num_faults()
        if num_faults != self._num_faults:
            if num_written_pages_at(packed.address, packed.size_bytes) != 0:
                return False
            self._num_faults = num_faults
        self._packed = packed
        return True

    def _compare(self, packed: _Packed, images: torch.Tensor) -> torch.Tensor | None:
        """Computes in both ways and compares; returns torch's answer."""
        if len(self._shapes) >= _MOST_SHAPES:
            return None
        stride, padding, dilation, groups = packed.settings
        plainly: torch.Tensor = _conv2d(
            images, packed.weight, packed.bias, stride, padding, dilation, groups
        )
        quickly = _operators.conv2d_run(images, packed.operator_context)
        if (
            quickly.stride() == plainly.stride()
            and quickly.shape == plainly.shape
            and torch.equal(quickly.view(torch.int32), plainly.view(torch.int32))
        ):
            self._shapes |= {images.shape}
        else:
            self._give_up()
        return plainly

    def _give_up(self) -> None:
        """Leaves the layer to torch for good, because somebody changes its weights."""
        self._is_given_up = True
        self._packed = None


def _settings_of(state: _State) -> tuple[Any, ...] | None:
    """Returns stride, padding, dilation and groups; None if other settings matter."""
    padding = state["padding"]
    if (
        isinstance(padding, str)
        or state["padding_mode"] != "zeros"
        or "_conv_forward" in state  # how models change what their borders are
    ):
        return None
    return state["stride"], padding, state["dilation"], state["groups"]


def _is_for_onednn(images: torch.Tensor) -> bool:
    """Tells whether torch would use oneDNN for these, stored channel by channel."""
    return (
        images.is_cpu
        and images.dim() == 4
        and images.numel() > _LEAST_ELEMENTS
        and images.dtype is torch.float32
        and images.layout is torch.strided
        and images.is_contiguous()
        and not images.is_contiguous(memory_format=torch.channels_last)
    )


def _is_packable(weight: object) -> TypeGuard[nn.Parameter]:
    """Tells whether a layer's weights are as in the file, and fit this kernel."""
    return (
        type(weight) is nn.Parameter
        and weight.dtype is torch.float32
        and weight.is_cpu
        and weight.layout is torch.strided
        and weight.is_contiguous()
        and not weight.is_inference()
        and num_written_pages_at(weight.data_ptr(), weight.nbytes) == 0
    )


def _num_faults() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def _fp32_precision() -> object:
    """Returns the precision that oneDNN may round to, if this torch lets one choose it."""
    chosen: object = getattr(torch._C, "_get_fp32_precision_getter", _no_choice)(
        "mkldnn", "conv"
    )
    return chosen


def _no_choice(backend: str, operator: str) -> object:
    return None
