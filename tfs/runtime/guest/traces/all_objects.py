"""All objects of this process that can be changed and that Python's collector knows."""

from __future__ import annotations

import collections.abc
import gc
import itertools
import json
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from tfs.runtime.guest.traces.object_layouts import WATCHED

_MANAGED_DICT: Final = 1 << 4  # of a type's flags: its instances' dicts are made late
_BOOKKEEPERS: Final = (
    threading.local,
    type(collections.abc.Sized.__dict__["_abc_impl"]),
    type(vars(json.JSONDecoder())["scan_once"]),
)
"""Types whose objects change as they are used: they remember threads, classes asked
for, keys."""

_namespace_of: Callable[[type], Mapping[str, object]] = type.__dict__[
    "__dict__"
].__get__


def all_objects() -> list[object]:
    """Returns all objects in this process that can be watched.

    Makes the dictionaries of instances that have none yet. Objects are recognized by
    their type, because a lazy object may say anything about its class.
    """
    tracked = gc.get_objects()
    kinds = {*map(type, tracked)}
    wanted = {k for k in kinds if issubclass(k, (*WATCHED, threading.local))}
    found = _by_id(_of_kinds(wanted, tracked))
    # Dictionaries of nothing but numbers and strings are unknown to the collector.
    wanted = {k for k in kinds if issubclass(k, dict)}
    found |= _by_id(_of_kinds(wanted, gc.get_referents(*tracked)))
    dict_of = {k: _dict_getter(k) for k in kinds if k.__flags__ & _MANAGED_DICT}
    made = [dict_of[type(x)].__get__(x) for x in _of_kinds({*dict_of}, tracked)]
    found |= _by_id(made)
    for each in gc.get_referents(*_of_kinds({*_BOOKKEEPERS}, tracked)):
        found.pop(id(each), None)
    return [each for each in found.values() if not _is_of_subclasses(each)]


def _of_kinds(kinds: AbstractSet[type], objects: Sequence[object]) -> list[object]:
    """Returns the objects of these types out of a million, without asking the objects."""
    return [*itertools.compress(objects, map(kinds.__contains__, map(type, objects)))]


def _by_id(objects: Sequence[object]) -> dict[int, object]:
    return dict(zip(map(id, objects), objects, strict=True))


def _dict_getter(kind: type) -> types.GetSetDescriptorType:
    """Returns the descriptor that yields an instance's real dictionary."""
    for base in kind.__mro__:
        getter = _namespace_of(base).get("__dict__")
        if type(getter) is types.GetSetDescriptorType:
            return getter
    raise RuntimeError(f"instances of {kind} have a dictionary that nothing gives")


def _is_of_subclasses(value: object) -> bool:
    """Whether this is a class's table of its subclasses, from which entries disappear."""
    if type(value) is not dict or not value:
        return False
    key, item = next(iter(value.items()))
    return type(item) is weakref.ReferenceType and key == id(item())
