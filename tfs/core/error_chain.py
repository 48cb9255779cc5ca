"""An error, and those that led to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_MOST_ERRORS: Final = 10  # a chain may be a circle: anybody can set an error's cause


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and those that led to it, the nearest first; ten at most."""
    each: BaseException | None = error
    for _ in range(_MOST_ERRORS):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__
