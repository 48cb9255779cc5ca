"""Asks for a look at everything, on the loop, soon, and not too often.

While a thousand models load, looking at all of them after each event would be most of
what the loop does: it rests between two looks for a multiple of what the last one took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock

_REST: Final = 10  # times as long as a look took


class Recheck:
    """One look after however many changes a round of the loop brings. Thread-safe.

    Args:
        look: Looks at everything; on the loop.
        post: Runs a function on the loop, soon.
        schedule: Runs a function on the loop at a time, by the clock; None for no rest.
        clock: Tells how long a look takes.

    """

    def __init__(
        self,
        look: Callable[[], None],
        post: Callable[[Callable[[], None]], None],
        schedule: Callable[[float, Callable[[], None]], None] | None,
        clock: Clock,
    ) -> None:
        self._look = look
        self._post = post
        self._schedule = schedule
        self._clock = clock
        self._is_posted = False
        self._rests_until_s = 0.0

    def ask(self) -> None:
        """Has everything looked at after this; quick, on any thread."""
        if self._is_posted:
            return
        self._is_posted = True
        if self._schedule is not None and self._clock.now() < self._rests_until_s:
            self._schedule(self._rests_until_s, self._run)
        else:
            self._post(self._run)

    def _run(self) -> None:
        self._is_posted = False
        begun_s = self._clock.now()
        self._look()
        ended_s = self._clock.now()
        self._rests_until_s = ended_s + _REST * (ended_s - begun_s)
