"""Calls an author's module as a server will: with named inputs, in evaluation mode."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tfs.core.errors import InvalidArgument
from tfs.export.values import Value, as_strings

log = logging.getLogger(__name__)


def to_call(module: nn.Module) -> nn.Module:
    """Returns a copy for one call, or the module itself if it cannot be copied.

    A module whose parameters are not made yet is called itself: its first call makes
    them.
    """
    if any(map(is_lazy, module.parameters())):
        return module
    try:
        return copy_of(module)
    except Exception as error:
        log.warning(
            "event=module_not_copied module=%s error=%r is called itself, and what its "
            "calls change stays changed",
            type(module).__name__,
            error,
        )
        return module


def copy_of(module: nn.Module) -> nn.Module:
    """Returns a copy that shares no parameter, buffer or attribute with the module.

    Raises:
        Exception: Whatever a part of it raises that cannot be copied.

    """
    memo: dict[int, Any] = {}
    forwarding = []
    for part in module.modules():
        # copy asks the object for this method, not its class: a module that forwards
        # what it does not have would be copied as the one that answers for it.
        if not hasattr(type(part), "__deepcopy__") and hasattr(part, "__deepcopy__"):
            new: Any = type(part).__new__(type(part))
            memo[id(part)] = new
            forwarding.append((part, new))
        # Weights that older functions compute (weight_norm, prune) belong to a graph of
        # gradients, and copy refuses these.
        for value in vars(part).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    copied: nn.Module = copy.deepcopy(module, memo)
    for part, new in forwarding:
        whole: Any = part
        new.__setstate__(copy.deepcopy(whole.__getstate__(), memo))
    return copied


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
