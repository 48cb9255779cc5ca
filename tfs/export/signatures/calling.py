"""Calls an author's module as a server will: with named inputs, in evaluation mode."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tfs.core.errors import InvalidArgument
from tfs.export.module_copy import to_call
from tfs.export.values import Value, as_strings

log = logging.getLogger(__name__)

OF_PROGRAMS: Final = (
    "is a graph already: torch.export.save(program, BASE/VERSION/model.pt2) makes a "
    "version of it; or save the module that it was made from, with "
    "platform='torch_export'"
)
"""For messages: what to do with a program made by torch.export."""


@contextlib.contextmanager
def evaluation(module: nn.Module) -> Iterator[nn.Module]:
    """Puts the module into evaluation mode for the block, then back into its own mode.

    Yields the module, or a copy of it if changing the mode does more than that: some
    adapters have a ``train`` of their own that merges their weights.

    Evaluation mode is what gets served, because a module in training mode would answer
    differently from call to call (dropout) and from batch to batch (batch
    normalisation).
    """
    if isinstance(module, torch.jit.ScriptModule) and not hasattr(module, "training"):
        yield module  # it was frozen, which leaves evaluation mode alone
        return
    training = [part for part in module.modules() if part.training]
    if training:
        log.warning(
            "event=module_in_training_mode module=%s exported in evaluation mode",
            type(module).__name__,
        )
    lazy = [name for name, each in module.named_parameters() if is_lazy(each)]
    if lazy:
        log.warning(
            "event=lazy_parameters module=%s parameters=%s were never computed with: "
            "the example sizes them, and their values are random",
            type(module).__name__,
            ",".join(lazy),
        )
    if any(map(_does_more_than_a_flag, module.modules())):
        module = to_call(module)
    try:
        module.eval()
    except NotImplementedError as error:
        raise InvalidArgument(
            f"{type(module).__name__} has no evaluation mode. A module that "
            f"torch.export made {OF_PROGRAMS}"
        ) from error
    try:
        yield module
    finally:
        for part in training:
            part.training = True


def _does_more_than_a_flag(part: nn.Module) -> bool:
    """Whether a part does something of its own when its mode is changed."""
    return (
        type(part).train is not nn.Module.train or type(part).eval is not nn.Module.eval
    ) and not isinstance(part, torch.jit.ScriptModule)


def run(function: Callable[..., object], inputs: Mapping[str, Value]) -> object:
    """Calls with fixed random numbers and without gradients; both are put back afterwards.

    The inputs are copies, as on a server: anything that the function writes to them is
    lost.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return function(**{name: _copy(value) for name, value in inputs.items()})


def _copy(value: Value) -> Value:
    return value.clone() if isinstance(value, torch.Tensor) else as_strings(value)
