"""Calls a module as torch does, with less work on the way to its ``forward``.

For each call torch checks whether the module was compiled, whether it is being traced,
and eight tables for hooks, half of them through the module, whose attribute look-up is
slow. That takes a microsecond, or three if something else ran since. The tables are
always the same objects, whatever is put into them later.
"""

from __future__ import annotations

from collections.abc import Callable
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
            return module(**inputs)
        return module.forward(**inputs)

    return call
