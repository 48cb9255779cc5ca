"""Names of a process's objects for messages, by what refers to them."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Final

_MOST_HOLDERS: Final = 1000  # that are looked at; common things have tens of thousands
_RUNNING: Final = (types.FrameType, types.GeneratorType, types.CoroutineType)
_NAMELESS: Final = (dict, tuple, set, types.CellType)


def names_of(values: Sequence[object]) -> list[str]:
    """Returns names for objects: ``torch.nn.functional.relu``, ``a logging.Logger``.

    An object without a name is described by its type. This takes some tenths of a
    second, and lets the collector touch all objects, so it is for a process that will
    end.
    """
    gc.unfreeze()  # the collector knows of nothing else who holds it
    names = _module_names()
    # What they lie in, and what that lies in.
    holders = _holders([each for each in values if id(each) not in names])
    outer = _holders([each for each in holders if type(each) in _NAMELESS])
    found = [*holders[:_MOST_HOLDERS], *outer[:_MOST_HOLDERS]]
    return [_name(each, found, names) for each in values]


def _module_names() -> dict[int, str]:
    """Returns the names of modules by what they hold, which very many others hold."""
    modules = [*sys.modules.items()]
    kind = types.ModuleType
    return {id(vars(each)): name for name, each in modules if type(each) is kind}


def name_of_code(code: object) -> str:
    """Returns a name for a function, a class or a module."""
    module = getattr(code, "__module__", None)
    name = getattr(code, "__qualname__", None) or getattr(code, "__name__", "?")
    return f"{module}.{name}" if module else f"{name}"


def _holders(values: Sequence[object]) -> list[object]:
    return [each for each in gc.get_referrers(*values) if type(each) not in _RUNNING]


def _name(value: object, holders: Sequence[object], names: Mapping[int, str]) -> str:
    if id(value) in names:
        return names[id(value)]
    if isinstance(value, types.FunctionType):
        return name_of_code(value)
    for owner in holders:
        held = [id(each) for each in gc.get_referents(owner)]
        if type(owner) is list or id(value) not in held:
            continue
        if isinstance(owner, type | types.FunctionType | types.ModuleType):
            return name_of_code(owner)
        if type(owner) is dict:
            key = next((key for key, item in owner.items() if item is value), "?")
            others = [each for each in holders if type(each) is not dict]
            return f"{_name(owner, others, names)}.{key}"
        if type(owner) in _NAMELESS:
            others = [each for each in holders if type(each) not in _NAMELESS]
            return _name(owner, others, names)
        return f"a {name_of_code(type(owner))}"
    return f"a {type(value).__name__}"
