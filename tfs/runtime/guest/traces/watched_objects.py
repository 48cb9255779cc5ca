"""Finds changes of existing objects without touching them.

A model's code replaces, adds to or patches dictionaries (of modules, classes or
instances, or held by any of them), lists, sets, functions and variables of closures.
Comparing them object by object would count references, which writes to every page that
they are on, and twenty megabytes that a worker shares with its zygote would become its
own. So a few words of the memory of each object are read instead: of a dict its version
(every change makes a new one), of a list or set the items, their number and their
address, of a function its code and defaults, and of a closure's variable what it refers
to.

``object_layouts.py`` knows where these words are, ``all_objects.py`` which objects
exist.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import operator
import threading
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import torch

from tfs.core.right_of_way import make_way
from tfs.runtime.guest.traces.object_layouts import WATCHED, WITH_ITEMS, layouts
from tfs.runtime.guest.traces.object_names import names_of
from tfs.runtime.guest.traces.object_words import SET_ENTRY_WORDS, WORD_BYTES

_FIRST_WORD: Final = 512  # of memory that may be read: nothing lies at its very start
_ADDRESSES: Final = 1 << 47  # bytes, of a process
_PART_WORDS: Final = 8192  # read at once: larger tensors get pages of their own
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class WatchedWords:
    """The contents of the memory of watched objects at some point in time. Immutable.

    Attributes:
        words: The watched words of each object.
        item_places: Where the items of lists and sets were.
        items: What the items were.

    """

    words: Sequence[torch.Tensor]
    item_places: Sequence[torch.Tensor]
    items: Sequence[torch.Tensor]


class WatchedObjects:
    """Objects of this process. Made once, before forks; immutable.

    Keeps them and their contents alive, so that their memory stays where it is.

    Args:
        objects: The objects to watch. Only changes of dicts, lists, sets, functions and
            cells are seen.
        but: Objects among these that are left out.

    Attributes:
        thread_locals: Objects among these that hold something else in each thread.

    Raises:
        RuntimeError: This Python lays out its objects in another way.

    """

    def __init__(self, objects: Iterable[object], but: Iterable[object] = ()) -> None:
        words_of = layouts()
        self.thread_locals: list[threading.local] = []
        self._kept: list[object] = []
        places: list[torch.Tensor] = []
        owners: list[torch.Tensor] = []
        self._first_words: dict[type, torch.Tensor] = {}  # of each object
        num_words = 0
        by_kind = self._by_kind(objects, {id(each) for each in but})
        for kind, members in by_kind.items():
            offsets = torch.tensor(words_of[kind])
            size = (len(members), len(offsets))
            addresses = torch.tensor([*map(id, members)], dtype=torch.int64)
            places.append((_place(addresses)[:, None] + offsets).flatten())
            numbers = torch.arange(len(self._kept), len(self._kept) + len(members))
            owners.append(numbers[:, None].expand(size).flatten())
            self._first_words[kind] = num_words + torch.arange(len(members)) * size[1]
            num_words += len(members) * len(offsets)
            self._kept += members
            if kind is WITH_ITEMS[-1]:
                self._num_parts_of_items = -(-num_words // _PART_WORDS)
        # Else another object could lie where one was that a list held.
        self._items = gc.get_referents(*(x for x in self._kept if type(x) is not dict))
        # All memory there is, by number of word; only what is known to be there is read.
        self._memory = torch.frombuffer(
            (ctypes.c_int64 * (_ADDRESSES // WORD_BYTES - _FIRST_WORD)).from_address(
                _FIRST_WORD * WORD_BYTES
            ),
            dtype=torch.int64,
        )
        self._places = torch.split(torch.cat(places), _PART_WORDS)
        self._owners = torch.cat(owners)
        self._first = WatchedWords((), (), ())
        self._first = self.read()

    def read(self) -> WatchedWords:
        """Returns the present contents, in this process. Reads some megabytes.

        Contents that have not changed since this was made are not held twice.
        """
        first = self._first
        with torch.inference_mode():
            words = self._read(self._places, first.words)
            item_places = first.item_places
            if not _same(words[: self._num_parts_of_items], first.words):
                places, _ = self._items_of(torch.cat(words))
                item_places = torch.split(places, _PART_WORDS)
            items = self._read(item_places, first.items)
            return WatchedWords(words, item_places, items)

    def changes(self, before: WatchedWords) -> list[str]:
        """Returns what differs from ``before``, by name, without repetitions.

        If anything differs, finding the names takes long.
        """
        with torch.inference_mode():
            differing = self._differing(self._places, before.words)
            owners = self._owners
            if not len(differing):
                # Items lie where they lay only where the words above say so.
                differing = self._differing(before.item_places, before.items)
                if len(differing):
                    _, owners = self._items_of(torch.cat(list(before.words)))
            indices: list[int] = torch.unique(owners[differing]).tolist()
        if not indices:
            return []
        names = {*names_of([self._kept[index] for index in indices[:_MOST_NAMED]])}
        if len(indices) > _MOST_NAMED:
            names.add(f"{len(indices) - _MOST_NAMED} more")
        return sorted(names)

    def _by_kind(
        self, objects: Iterable[object], ignored: AbstractSet[int]
    ) -> dict[type, list[object]]:
        found: dict[type, list[object]] = {kind: [] for kind in WATCHED}
        kind_of: dict[type, type | None] = {}
        for each in objects:
            own = type(each)
            if own not in kind_of:
                kind_of[own] = next((k for k in WATCHED if issubclass(own, k)), None)
            kind = kind_of[own]
            if isinstance(each, threading.local):
                self.thread_locals.append(each)
            elif kind is not None and id(each) not in ignored:
                found[kind].append(each)
        return found

    def _read(
        self, places: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns what is there; reuses the tensors from before where nothing changed."""
        found = []
        for part, old in itertools.zip_longest(places, before[: len(places)]):
            make_way()
            new = self._memory[part]
            found.append(old if old is not None and torch.equal(old, new) else new)
        return found

    def _differing(
        self, places: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Returns the numbers of the words that have changed."""
        found = [torch.empty(0, dtype=torch.int64)]
        for number, (part, old) in enumerate(zip(places, before, strict=True)):
            make_way()
            indices = (self._memory[part] != old).nonzero().flatten()
            if len(indices):
                found.append(indices + number * _PART_WORDS)
        return torch.cat(found)

    def _items_of(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns where the items of lists and sets are, and which object owns each."""
        lists, sets = self._first_words[list], self._first_words[set]
        rows = torch.cat([lists, sets])
        lengths = torch.cat([words[lists], words[sets] + 1])
        strides = torch.ones_like(rows)
        strides[len(lists) :] = SET_ENTRY_WORDS
        numbers = torch.arange(int(lengths.sum()))
        numbers -= (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        places = _place(words[rows + 1]).repeat_interleave(lengths)
        places += numbers * strides.repeat_interleave(lengths)
        return places, self._owners[rows].repeat_interleave(lengths)


def _place(addresses: torch.Tensor) -> torch.Tensor:
    return addresses // WORD_BYTES - _FIRST_WORD


def _same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return bool(others) and all(map(operator.is_, some, others))
