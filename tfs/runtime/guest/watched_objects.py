"""What code can change of the modules that are there: looked at without touching it.

Functions, classes and containers of modules are what a model's code replaces, adds to
or patches. To compare them object by object would count references: twenty megabytes
that a worker shares with its zygote would become its own. So their memory is read
instead, a few words of each (``object_words.py``): of a dict its version (every change
makes a new one), of a list and a set where and how many their items are, and those, of a
function its code and defaults.

A Python whose dicts have no version (3.14) cannot be watched.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from tfs.runtime.guest.object_words import (
    LIST_ITEMS,
    LIST_LENGTH,
    SET_MASK,
    SET_TABLE,
    SET_USED,
    WORD_BYTES,
    find_version_word,
    items_of_list,
    members_of_set,
    word,
)

_FUNCTION_WORDS: Final = 16
_PART_WORDS: Final = 8192  # read at once: larger tensors get pages of their own

_Name: TypeAlias = "tuple[str | type, str]"
"""A module's name or a class, and what of it; "" for all of it."""

_namespace_of: Callable[[type], types.MappingProxyType[str, Any]] = type.__dict__[
    "__dict__"
].__get__


@dataclass(frozen=True, slots=True)
class WatchedWords:
    """What the memory of watched objects said at some time. Immutable."""

    words: Sequence[torch.Tensor]
    lists: Sequence[bytes]
    sets: Sequence[bytes]


class WatchedObjects:
    """What modules hold in this process. Made once, before forks; immutable.

    Keeps all of it alive, so that its memory stays where it is.

    Args:
        names: Of modules that are not looked at.

    Raises:
        RuntimeError: This Python lays its objects out in another way.

    """

    def __init__(self, ignored: frozenset[str] = frozenset()) -> None:
        version_word = find_version_word()
        function_words = _find_function_words()
        found = _find(ignored)
        self._names: list[_Name] = []
        self._kept: list[object] = []
        addresses: list[int] = []
        self._lists: list[tuple[int, list[Any]]] = []
        self._sets: list[tuple[int, set[Any]]] = []
        for name, value in found:
            if isinstance(value, types.FunctionType):
                words = function_words
            elif isinstance(value, dict):
                words = (version_word,)
            elif isinstance(value, list):
                self._lists.append((len(self._names), value))
                words = (LIST_LENGTH, LIST_ITEMS)
            else:
                self._sets.append((len(self._names), value))
                words = (SET_USED, SET_MASK, SET_TABLE)
            for index in words:
                addresses.append(id(value) + index * WORD_BYTES)
                self._names.append(name)
            self._kept.append(value)
        first = min(addresses)
        span = (max(addresses) - first) // WORD_BYTES + 1
        words_from_first = (ctypes.c_int64 * span).from_address(first)
        self._memory = torch.frombuffer(words_from_first, dtype=torch.int64)
        places = (torch.tensor(addresses) - first) // WORD_BYTES
        self._places = torch.split(places, _PART_WORDS)

    def read(self) -> WatchedWords:
        """Returns what it is now, in this process. Reads some megabytes."""
        with torch.inference_mode():
            parts = [self._memory[places] for places in self._places]
        return WatchedWords(
            parts,
            [items_of_list(value) for _, value in self._lists],
            [members_of_set(value) for _, value in self._sets],
        )

    def changes(self, before: WatchedWords) -> list[str]:
        """Returns what differs from ``before``, by name, without repetitions."""
        with torch.inference_mode():
            pairs = zip(self._places, before.words, strict=True)
            differing = [
                number * _PART_WORDS + index
                for number, (places, words) in enumerate(pairs)
                for index in (self._memory[places] != words)
                .nonzero()
                .flatten()
                .tolist()
            ]
        found = {_text(self._names[index]): None for index in differing}
        # Items lie where they lay only where the words above say so.
        changed = set(differing)
        for (index, items), content in zip(self._lists, before.lists, strict=True):
            if index in changed or index + 1 in changed:
                continue
            if items_of_list(items) != content:
                found[_text(self._names[index])] = None
        for (index, members), content in zip(self._sets, before.sets, strict=True):
            if changed.isdisjoint(range(index, index + 3)) and (
                members_of_set(members) != content
            ):
                found[_text(self._names[index])] = None
        return list(found)


def _find(ignored: frozenset[str]) -> list[tuple[_Name, Any]]:
    """Returns the namespaces of modules and of classes in them, with what they hold."""
    found: dict[int, tuple[_Name, Any]] = {}

    def add(owner: str | type, namespace: dict[str, Any]) -> None:
        found[id(namespace)] = ((owner, ""), namespace)
        for key, value in namespace.items():
            # By type: what lazy objects say of their class is up to them.
            kind = type(value)
            if kind is types.FunctionType or issubclass(kind, dict | list | set):
                found.setdefault(id(value), ((owner, key), value))
            elif issubclass(kind, type):
                inner = _namespace_of(value)
                (own,) = gc.get_referents(inner)
                if id(own) not in found:
                    add(value, own)

    for name, module in list(sys.modules.items()):
        if issubclass(type(module), types.ModuleType) and name not in ignored:
            add(name, module.__dict__)
    return list(found.values())


def _text(name: _Name) -> str:
    owner, key = name
    if isinstance(owner, type):
        owner = f"{owner.__module__}.{owner.__qualname__}"
    return f"{owner}.{key}" if key else owner


def _find_function_words() -> tuple[int, ...]:
    """Returns where a function has its code, its defaults and those by name.

    Raises:
        RuntimeError: They are nowhere.

    """

    def sample(first: int = 1, *, second: int = 2) -> None:
        """Has defaults of both kinds."""

    words = [word(sample, index) for index in range(_FUNCTION_WORDS)]
    parts = (sample.__code__, sample.__defaults__, sample.__kwdefaults__)
    try:
        return tuple(words.index(id(part)) for part in parts)
    except ValueError:
        raise RuntimeError("this Python's functions are not as known here") from None
