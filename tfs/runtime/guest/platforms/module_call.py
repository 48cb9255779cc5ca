"""Calls a module as torch does, with less work on the way to its ``forward``.

For each call torch checks whether the module was compiled, whether it is being traced,
and eight tables for hooks, half of them through the module, whose attribute look-up is
slow. That takes a microsecond, or three if something else ran since. The tables are
always the same objects, whatever is put into them later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import Final

import torch
from torch.nn.modules import module as torch_module

_OWN_TABLES: Final = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
)
_COMMON_TABLES: Final = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def module_call(module: torch.nn.Module) -> Callable[..., object]:
    """Returns a function that calls a module with inputs by name, including its hooks.

    It is the module itself if that is not called in the usual way, because it was
    compiled, is scripted, or its class has a way of its own.
    """
    own, common = vars(module), vars(torch_module)
    tables = [own.get(name) for name in _OWN_TABLES]
    tables += [common.get(name) for name in _COMMON_TABLES]
    if (
        type(module).__call__ is not torch.nn.Module.__call__
        or isinstance(module, torch.jit.ScriptModule)
        or own.get("_compiled_call_impl") is not None
        or not all(isinstance(table, dict) for table in tables)
    ):
        return module
    a, b, c, d, e, f, g, h = tables

    def call(**inputs: object) -> object:
        if a or b or c or d or e or f or g or h:
            return _with_hooks(module, inputs)
        return module.forward(**inputs)

    return call


def _with_hooks(module: torch.nn.Module, inputs: dict[str, object]) -> object:
    """Calls a module by position as far as it goes, if that is how its hooks get inputs.

    A hook sees what is passed by keyword only if it was registered with ``with_kwargs``;
    others would be called with no inputs at all.
    """
    names: list[str] = []
    if any(
        key not in with_keywords
        for hooks, with_keywords in (
            (module._forward_hooks, module._forward_hooks_with_kwargs),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
            (torch_module._global_forward_hooks, ()),
            (torch_module._global_forward_pre_hooks, ()),
        )
        for key in hooks
    ):
        names = _leading(module.forward, inputs)
    rest = {name: value for name, value in inputs.items() if name not in names}
    return module(*(inputs[name] for name in names), **rest)


def _leading(function: Callable[..., object], inputs: Container[str]) -> list[str]:
    """Returns the first parameters of a function, up to one for which there is no input."""
    names = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is not each.POSITIONAL_OR_KEYWORD or each.name not in inputs:
            break
        names.append(each.name)
    return names
