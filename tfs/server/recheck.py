"""Has everything looked at on the loop after changes, soon but not too often.

While a thousand models load, looking at all of them after each event would take most of
the loop's time. So after each look there is a rest of several times as long as it took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock
from tfs.core.loop_entry import LoopEntry

_REST: Final = 10  # times as long as a look took


class Recheck:
    """One look after however many changes a round of the loop brings. Thread-safe.

    Args:
        look: Looks at everything; on the loop.
        loop: Runs the looks.
        clock: Tells how long a look takes.

    """

    def __init__(
        self,
        look: Callable[[], None],
        loop: LoopEntry,
        clock: Clock,
    ) -> None:
        self._look = look
        self._loop = loop
        self._clock = clock
        self._is_posted = False
        self._rests_until_s = 0.0

    def ask(self) -> None:
        """Has everything looked at after this; quick, on any thread."""
        if self._is_posted:
            return
        self._is_posted = True
        if self._clock.now() < self._rests_until_s:
            self._loop.post_at(self._rests_until_s, self._run)
        else:
            self._loop.post(self._run)

    def _run(self) -> None:
        self._is_posted = False
        begun_s = self._clock.now()
        self._look()
        ended_s = self._clock.now()
        self._rests_until_s = ended_s + _REST * (ended_s - begun_s)
