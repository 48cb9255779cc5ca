"""Which words of an object's memory change with its contents, by its type."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Final

from tfs.runtime.guest.traces.object_words import (
    LIST_ITEMS,
    LIST_LENGTH,
    SET_MASK,
    SET_TABLE,
    SET_USED,
    find_version_word,
    word,
)

WITH_ITEMS: Final = (list, set)
WATCHED: Final = (*WITH_ITEMS, dict, types.FunctionType, types.CellType)

_FUNCTION_WORDS: Final = 16
_CELL_CONTENT: Final = 2


def layouts() -> Mapping[type, tuple[int, ...]]:
    """Returns which words of each type of object should be compared.

    For lists and sets, the first word is the number of places for items, and the second
    is their address.

    Raises:
        RuntimeError: This Python lays out its objects in a way that is not known here.

    """
    version_word = find_version_word()
    item = object()
    if word(types.CellType(item), _CELL_CONTENT) != id(item):
        raise RuntimeError("this Python's closures are not as known here")
    return {
        dict: (version_word,),
        list: (LIST_LENGTH, LIST_ITEMS),
        set: (SET_MASK, SET_TABLE, SET_USED),
        types.FunctionType: _find_function_words(),
        types.CellType: (_CELL_CONTENT,),
    }


def _find_function_words() -> tuple[int, ...]:
    """Returns where a function has its code, its defaults, those by name, its attributes.

    Raises:
        RuntimeError: They are nowhere.

    """

    def sample(first: int = 1, *, second: int = 2) -> None:
        """Has defaults of both kinds, and an attribute."""

    vars(sample)["own"] = 1
    words = [word(sample, index) for index in range(_FUNCTION_WORDS)]
    parts = (
        sample.__code__,
        sample.__defaults__,
        sample.__kwdefaults__,
        sample.__dict__,
    )
    try:
        return tuple(words.index(id(part)) for part in parts)
    except ValueError:
        raise RuntimeError("this Python's functions are not as known here") from None
