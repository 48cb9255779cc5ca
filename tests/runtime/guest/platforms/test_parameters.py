"""tfs.runtime.guest.platforms.module_call."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.platforms.module_call import check_parameters, check_returns


class Scaled(nn.Module):
    """Takes two inputs, the second of them optional."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Returns ``x`` times ``scale``."""
        return x * scale


class Calls(nn.Module):
    """Is called in a way of its own."""

    def __call__(self, **inputs: Tensor) -> Tensor:
        """Returns ``x``."""
        return inputs["x"]


def scripted() -> nn.Module:
    """Returns a module of TorchScript that takes an optional input as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Scaled())


def traced() -> nn.Module:
    """Returns a module of TorchScript that takes ``input``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module: nn.Module = torch.jit.trace(  # type: ignore[no-untyped-call]
            nn.Linear(2, 2),
            torch.rand(1, 2),
            check_trace=False,  # imports for a second
        )
    return module


def hooked() -> nn.Module:
    """Returns a module whose hook renames what it is called with."""
    module = Scaled()
    module.register_forward_pre_hook(
        lambda _module, _args, inputs: ((inputs["x"],), {}), with_kwargs=True
    )
    return module


def wrapper() -> Callable[..., object]:
    """Returns a function that takes anything, and says that it takes ``images``."""

    def wrapped(images: Tensor) -> Tensor:
        return images

    @functools.wraps(wrapped)
    def call(*args: Tensor, **inputs: Tensor) -> Tensor:
        return wrapped(*args, *inputs.values())

    return call


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda **inputs: inputs,
        lambda x, more=1: x,
        wrapper(),
        dict,
        Scaled(),
        Calls(),
        hooked(),
        scripted(),
        scripted().forward,
    ],
    ids=[
        "named", "any", "optional", "wrapper", "C", "module", "own-call", "hook",
        "script", "script's-method",
    ],
)  # fmt: skip
def test_what_takes_the_inputs_passes(function: Callable[..., object]) -> None:
    """So does what does not say what it takes."""
    check_parameters(function, ["x"], "m/1")


@pytest.mark.parametrize(
    "function",
    [
        lambda images: images,
        lambda: None,
        lambda x, more: x,
        lambda x, /: x,
        traced(),
        nn.Linear(2, 2),
    ],
    ids=["other", "none", "more", "positional", "traced", "module"],
)
def test_what_cannot_take_the_inputs_is_refused(
    function: Callable[..., object],
) -> None:
    """Every call of it would fail, and the author reads what it takes instead."""
    with pytest.raises(InvalidArgument, match=r"takes \(.*\), but .* by name: x \("):
        check_parameters(function, ["x"], "m/1")


async def awaited(x: Tensor) -> Tensor:
    """Returns ``x``, later."""
    return x


def yielded(x: Tensor) -> Iterator[Tensor]:
    """Yields ``x``."""
    yield x


@pytest.mark.parametrize("function", [awaited, yielded])
def test_what_returns_no_values_is_refused(function: Callable[..., object]) -> None:
    """Nobody awaits what it returns, or iterates over it."""
    check_returns(Scaled().forward, "m/1")
    with pytest.raises(InvalidArgument, match=r"write def|return what it yields"):
        check_returns(function, "m/1")
