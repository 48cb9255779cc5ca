"""Reads words of Python's objects directly from memory.

Looking into an object in Python counts references to its contents, which writes to
every page that they are on. In a process that shares its memory with the one it was
forked from, those pages would become its own. Reading the memory does not have this
effect. Where the words are is found by experiment and not taken for granted.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

WORD_BYTES: Final = 8
LIST_LENGTH, LIST_ITEMS = 2, 3
SET_USED, SET_MASK, SET_TABLE = 3, 4, 5
SET_ENTRY_WORDS: Final = 2  # a member, and its hash
_DICT_WORDS: Final = 6


def word(value: object, index: int) -> int:
    """Returns one word of an object's own memory."""
    return ctypes.c_ssize_t.from_address(id(value) + index * WORD_BYTES).value


def items_of_list(value: list[Any]) -> bytes:
    """Returns which objects a list holds, as their addresses."""
    length_bytes = word(value, LIST_LENGTH) * WORD_BYTES
    return ctypes.string_at(word(value, LIST_ITEMS), length_bytes)


def members_of_set(value: set[Any]) -> bytes:
    """Returns which objects a set holds, and where in its table they are."""
    size_bytes = (word(value, SET_MASK) + 1) * SET_ENTRY_WORDS * WORD_BYTES
    return ctypes.string_at(word(value, SET_TABLE), size_bytes)


def find_version_word() -> int:
    """Returns which word of a dict changes with each change of its contents.

    Raises:
        RuntimeError: There is none (Python 3.14), or lists and sets are laid out in a
            way that is not known here.

    """
    sample: dict[str, object] = {"a": 1, "b": 2}
    seen: list[list[int]] = []
    for value in (None, "x", None):
        sample["a"] = value
        seen.append([word(sample, index) for index in range(_DICT_WORDS)])
    versions = [
        index
        for index, words in enumerate(zip(*seen, strict=True))
        if len({*words}) == 3
    ]
    item, other = object(), object()
    members = {item}
    if (
        len(versions) != 1
        or items_of_list([item, other])
        != b"".join(id(each).to_bytes(8, sys.byteorder) for each in (item, other))
        or id(item).to_bytes(8, sys.byteorder) not in members_of_set(members)
        or word(members, SET_USED) != 1
    ):
        raise RuntimeError("this Python's objects are laid out in a way not known here")
    return versions[0]
