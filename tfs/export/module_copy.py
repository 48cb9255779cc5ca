"""Copies of a module: for calls whose effects are lost with it, and with plain tensors."""

from __future__ import annotations

import copy
import logging
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tfs.core.errors import InvalidArgument

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


def without_parametrizations(module: nn.Module) -> nn.Module:
    """Returns a copy in which parametrized tensors have their computed values.

    weight_norm, spectral_norm and similar functions make classes that cannot be
    pickled. In evaluation mode the values that they compute do not change. Returns the
    module itself if nothing in it is parametrized.
    """
    if not any(map(is_parametrized, module.modules())):
        return module
    try:
        with torch.no_grad():
            plain = copy_of(module)
            for part in plain.modules():
                if is_parametrized(part):
                    _fix_parametrizations(part)
    except Exception as error:
        raise InvalidArgument(
            f"{type(module).__name__} has parametrized parts (weight_norm, "
            "spectral_norm, ...), which cannot be pickled, and their values cannot be "
            f"fixed: {type(error).__name__}: {error}. Do it before: "
            "torch.nn.utils.parametrize.remove_parametrizations(part, 'weight')"
        ) from error
    log.info("event=parametrizations_fixed module=%s", type(module).__name__)
    return plain


def is_parametrized(part: nn.Module) -> bool:
    """Whether tensors of this very module are computed from others.

    torch's function of this name asks for an attribute, which a module that forwards
    unknown ones to another would answer for that one. ``_modules`` is where every module
    keeps its parts; without it, no part of one can be told from its owner's.
    """
    return not isinstance(part, torch.jit.ScriptModule) and isinstance(
        part._modules.get("parametrizations"), nn.ModuleDict
    )


def _fix_parametrizations(part: nn.Module) -> None:
    """Removes the parametrizations from one module.

    torch's remove_parametrizations would change the class, and with it the module of
    which this one is a copy.
    """
    parametrizations = cast("nn.ModuleDict", part.parametrizations)
    values = {
        name: (getattr(part, name), bool(list(each.parameters(recurse=False))))
        for name, each in parametrizations.items()
    }
    del part.parametrizations
    part.__class__ = type(part).__bases__[0]
    for name, (value, is_parameter) in values.items():
        if is_parameter:
            part.register_parameter(name, nn.Parameter(value.detach().clone()))
        else:
            part.register_buffer(name, value.detach().clone())
    # These hooks read older checkpoints. They are local functions, which cannot be
    # pickled; if torch renames the attribute, such modules are refused.
    hooks = part._load_state_dict_pre_hooks
    for key, hook in list(hooks.items()):
        function = getattr(hook, "hook", hook)
        if function.__module__ == torch.nn.utils.parametrizations.__name__:
            del hooks[key]
