"""Makes parts of a loaded model quicker, with equal bits: a module for each kind of part."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from tfs.runtime.guest.fast_layers.builtin_operators import call_builtins
from tfs.runtime.guest.fast_layers.embedding_bags import quicken_bag_nodes, quicken_bags
from tfs.runtime.guest.fast_layers.layer_chains import quicken_chains
from tfs.runtime.guest.fast_layers.max_pooling import quicken_graph, quicken_modules

_CONTAINERS: Final = (dict, list, tuple)
_MOST_ITEMS: Final = 256
"""Longest container that is searched for modules. Vocabularies are longer, and contain
none."""


def quicken(model: torch.nn.Module) -> None:
    """Makes a model quicker where that is possible with equal bits."""
    quicken_modules(model)
    quicken_bags(model)
    quicken_chains(model)


def quicken_program(program: torch.fx.GraphModule) -> None:
    """Makes an exported program quicker where that is possible with equal bits."""
    changed = [
        each(program) for each in (quicken_graph, quicken_bag_nodes, call_builtins)
    ]
    if any(changed):
        program.recompile()  # once for all changes, because it takes milliseconds


def quicken_held(servable: object, code: types.ModuleType) -> None:
    """Quickens the modules that an object of a file, or the file itself, holds.

    It looks in attributes, in short containers, and in objects of the file's own
    classes. Compiled modules stay as they are: the compiler would find other code.
    """
    for module in _held(servable, code):
        if not any(map(_is_compiled, torch.nn.Module.modules(module))):
            quicken(module)


def _held(servable: object, code: types.ModuleType) -> Iterator[torch.nn.Module]:
    seen: set[int] = set()
    waiting: list[object] = [servable, *vars(code).values()]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        # Not isinstance(), because an object may claim any class.
        kind = type(value)
        if issubclass(kind, torch.nn.Module):
            assert isinstance(value, torch.nn.Module)
            yield value
        elif kind in _CONTAINERS:
            assert isinstance(value, dict | list | tuple)
            if len(value) <= _MOST_ITEMS:
                waiting += value.values() if isinstance(value, dict) else value
        elif kind.__module__ == code.__name__:
            own = getattr(value, "__dict__", None)
            if isinstance(own, Mapping):
                waiting += own.values()


def _is_compiled(module: torch.nn.Module) -> bool:
    # The class of what torch.compile() returns. It is not imported only to compare with.
    return "_orig_mod" in vars(module).get("_modules", {}) or (
        vars(module).get("_compiled_call_impl") is not None
    )
