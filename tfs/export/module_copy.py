"""Copies a module, so that what calls do to its state is lost with the copy."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

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
