"""Runs chains of torch's own layers with less Python around their operators.

A layer of a ``Sequential`` costs more than its operator: five Python functions, and a
search for each parameter. Its output is also a new tensor, even if the layer only
changes each element of what the layer before made, which nobody else has; a tensor that
is larger than a core's cache then travels through memory. A chain that a model calls as
a whole saves both. The operators are the same, in the same order, on the same elements,
and such activations work in place. Every bit is the same; a MobileNetV3 takes a tenth
less time.

A layer that is not known, or has hooks, another ``forward`` or settings that make a
difference, is called as before. All of this is checked anew in each call, so that a
model may change its layers.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch._jit_internal import is_scripting
from torch.nn import functional
from torch.nn.modules import module as _module

from tfs.runtime.guest.fast_layers import packed_convolutions
from tfs.runtime.guest.fast_layers.plain_call import has_own_forward, is_plain_call

_State = Mapping[str, Any]
"""A module's ``__dict__``."""


def quicken_chains(model: nn.Module) -> None:
    """Makes the model's own ``Sequential`` modules run in this way.

    Chains where nothing would be saved, subclasses, and modules whose ``forward`` was
    replaced, stay as they are. A quickened module can be copied, pickled, scripted,
    traced and exported as before.
    """
    if any(getattr(owner, name) is not theirs for owner, name, theirs in _THEIRS):
        return  # the model, or some library, has replaced torch's own
    for module in nn.Module.modules(model):
        if (
            type(module) is nn.Sequential
            and not has_own_forward(module)
            and any(type(each) in _WORTHWHILE for each in module)
        ):
            # Bound, so that a copy of the module runs its own layers.
            vars(module)["forward"] = types.MethodType(forward, module)


def forward(
    self: nn.Sequential,
    input: torch.Tensor,  # noqa: A002 - torch's name, and models use it
) -> torch.Tensor:
    """``Sequential.forward`` of a quickened module, which pickles by this name."""
    if is_scripting():  # compiles this branch alone
        for layer in self:
            input = layer(input)  # noqa: A001
        return input
    else:  # noqa: RET505 - what follows a return would be compiled
        if (
            _module._global_forward_hooks
            or _module._global_forward_pre_hooks
            or not is_plain_call(input)
        ):
            plainly: torch.Tensor = _THEIR_FORWARDS[nn.Sequential](self, input)
            return plainly
        return _run(vars(self), input, is_ours=False)[0]


def _run(
    chain: _State, tensor: torch.Tensor, *, is_ours: bool
) -> tuple[torch.Tensor, bool]:
    """Returns a chain's output, and whether nobody else has it.

    Args:
        chain: ``__dict__`` of the Sequential.
        tensor: The chain's input.
        is_ours: Whether nothing else refers to that input.

    """
    for layer in chain["_modules"].values():
        kind = type(layer)
        state = vars(layer)
        if (
            kind not in _THEIR_FORWARDS
            or type(tensor) is not torch.Tensor
            or state["_forward_hooks"]
            or state["_forward_pre_hooks"]
            or "_compiled_call_impl" in state
        ):
            tensor, is_ours = layer(tensor), False
            continue
        own = state.get("forward")
        if own is not None:
            function = getattr(own, "__func__", None)
            if function is forward:
                tensor, is_ours = _run(state, tensor, is_ours=is_ours)
                continue
            if function is not packed_convolutions.forward:
                tensor, is_ours = layer(tensor), False
                continue
        make = _MAKERS.get(kind)
        if make is not None:
            made = make(state, tensor)
            if made is None:
                tensor, is_ours = layer(tensor), False
            else:
                tensor, is_ours = made, True
            continue
        change = _CHANGES.get(kind)
        if change is not None:
            if is_ours:
                change(state, tensor)
            else:
                tensor, is_ours = layer(tensor), not state["inplace"]
        elif kind is nn.Sequential or state["training"]:
            tensor, is_ours = layer(tensor), False
        # All other layers do nothing while a model serves.
    return tensor, is_ours


def _convolve(state: _State, images: torch.Tensor) -> torch.Tensor | None:
    parameters = state["_parameters"]
    weight = parameters.get("weight")
    if (
        weight is None
        or "bias" not in parameters
        or state["padding_mode"] != "zeros"
        or "_conv_forward" in state  # how models change what their borders are
    ):
        return None
    packed = packed_convolutions.convolve(state, images)
    if packed is not None:
        return packed
    return functional.conv2d(
        images,
        weight,
        parameters["bias"],
        state["stride"],
        state["padding"],
        state["dilation"],
        state["groups"],
    )


def _multiply(state: _State, rows: torch.Tensor) -> torch.Tensor | None:
    parameters = state["_parameters"]
    weight = parameters.get("weight")
    if weight is None or "bias" not in parameters:
        return None
    return functional.linear(rows, weight, parameters["bias"])


def _normalise(state: _State, images: torch.Tensor) -> torch.Tensor | None:
    parameters, buffers = state["_parameters"], state["_buffers"]
    mean, variance = buffers.get("running_mean"), buffers.get("running_var")
    if (
        mean is None
        or variance is None
        or "weight" not in parameters
        or "bias" not in parameters
        or state["training"]
        or images.dim() != 4
        or not images.is_cpu
    ):
        return None
    return torch.batch_norm(
        images,
        parameters["weight"],
        parameters["bias"],
        mean,
        variance,
        False,
        0.0,  # counts in training only
        state["eps"],
        False,  # cuDNN
    )


_MAKERS: Final[
    Mapping[type[nn.Module], Callable[[_State, torch.Tensor], torch.Tensor | None]]
] = {nn.Conv2d: _convolve, nn.Linear: _multiply, nn.BatchNorm2d: _normalise}
"""Layers whose output is always a new tensor, of which they keep no reference."""

_CHANGES: Final[Mapping[type[nn.Module], Callable[[_State, torch.Tensor], object]]] = {
    nn.ReLU: lambda _, tensor: torch.relu_(tensor),
    nn.ReLU6: lambda state, tensor: functional.hardtanh(
        tensor, state["min_val"], state["max_val"], inplace=True
    ),
    nn.LeakyReLU: lambda state, tensor: functional.leaky_relu(
        tensor, state["negative_slope"], inplace=True
    ),
    nn.SiLU: lambda _, tensor: functional.silu(tensor, inplace=True),
    nn.Hardswish: lambda _, tensor: functional.hardswish(tensor, inplace=True),
    nn.Hardsigmoid: lambda _, tensor: functional.hardsigmoid(tensor, inplace=True),
}
"""Layers that compute each element from the same element of their input, and so can work
in place."""

_WORTHWHILE: Final = frozenset({*_MAKERS, nn.Sequential})
_KINDS: Final[tuple[type[nn.Module], ...]] = (
    *_MAKERS,
    *_CHANGES,
    nn.Dropout,
    nn.Identity,
    nn.Sequential,
)
_THEIR_FORWARDS: Final = {each: each.forward for each in _KINDS}
_THEIRS: Final = tuple(
    (owner, name, getattr(owner, name))
    for owner, name in (
        *((each, "forward") for each in _KINDS),
        (nn.Module, "__call__"),
        (nn.Conv2d, "_conv_forward"),
        (functional, "batch_norm"),
        (functional, "relu"),
        (functional, "dropout"),
    )
)
"""Functions that a quickened chain does not call: it may only skip them while they are
torch's own."""
