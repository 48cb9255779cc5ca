"""A limit on the requests in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

RETRY_AFTER_S: Final = 0.05
"""The pause in seconds that a refusal suggests: about the time that a queue of small
requests takes."""


class InFlightLimit:
    """Counts how many requests are worked on. Thread-safe.

    It is a deque of tokens. Every request takes and gives back a place, so both are
    single calls of C code, which are atomic under the GIL and cost no Python frame.

    Args:
        num: How many places there are; 0 sets no limit, and nothing is counted.

    Attributes:
        take: Takes a place; the caller owes a ``give_back``. Raises IndexError, with
            nothing taken, if there is none.
        give_back: Gives a place back.

    """

    __slots__ = ("_num", "_tokens", "give_back", "take")

    def __init__(self, num: int) -> None:
        self._num = num
        self._tokens: deque[None] | None = None
        self.take: Callable[[], object] = [].clear  # quick, and changes nothing
        self.give_back: Callable[[], object] = self.take
        if num:
            self._tokens = tokens = deque((None,) * num)
            self.take = tokens.pop
            self.give_back = partial(tokens.append, None)

    @property
    def num_taken(self) -> int:
        """How many are taken now; 0 where there is no limit."""
        return 0 if self._tokens is None else self._num - len(self._tokens)

    def take_all(self, num: int) -> bool:
        """Takes ``num`` places; or none, and returns False, if there are too few.

        Only for the thread that takes places; all others only give them back.
        """
        tokens = self._tokens
        if tokens is not None:
            if len(tokens) < num:
                return False
            for _ in range(num):
                tokens.pop()
        return True

    def give_all_back(self, num: int) -> None:
        """Gives back ``num`` places."""
        if self._tokens is not None:
            self._tokens.extend((None,) * num)
