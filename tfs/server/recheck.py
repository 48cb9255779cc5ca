"""Has everything looked at after changes, soon but not too often.

While a thousand models load, looking at all of them after each event would take most of
a processor. So after each look there is a rest of several times as long as it took. With
tens of thousands one look takes a second, and so none is taken on the serving loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock
from tfs.core.executor import Executor
from tfs.core.loop_entry import LoopEntry

_REST: Final = 10  # times as long as a look took


class Recheck:
    """One look after however many changes a round of the loop brings. Thread-safe.

    Args:
        look: Looks at everything, on the executor, one look at a time.
        after: Called on the loop after each look.
        executor: Where looks are taken.
        loop: Runs what follows them.
        clock: Tells how long a look takes.

    """

    def __init__(
        self,
        look: Callable[[], None],
        after: Callable[[], None],
        executor: Executor,
        loop: LoopEntry,
        clock: Clock,
    ) -> None:
        self._look = look
        self._after = after
        self._executor = executor
        self._loop = loop
        self._clock = clock
        self._is_posted = False
        self._rests_until_s = 0.0
        # The loop's: whether a look is under way, and another was asked for meanwhile.
        self._is_looking = False
        self._is_next = False

    def ask(self) -> None:
        """Has everything looked at after this; quick, on any thread."""
        if self._is_posted:
            return
        self._is_posted = True
        if self._clock.now() < self._rests_until_s:
            self._loop.post_at(self._rests_until_s, self._begin)
        else:
            self._loop.post(self._begin)

    def _begin(self) -> None:
        if self._is_looking:
            self._is_next = True
            return
        self._is_looking = True
        # Refused when the server ends: who waits is told by others, and nobody asks.
        with contextlib.suppress(RuntimeError):
            self._executor.submit(self._run)

    def _run(self) -> None:
        self._is_posted = False
        begun_s = self._clock.now()
        try:
            self._look()
        finally:
            took_s = self._clock.now() - begun_s
            self._loop.post(lambda: self._end(took_s))

    def _end(self, took_s: float) -> None:
        begun_s = self._clock.now()
        try:
            self._after()
        finally:
            ended_s = self._clock.now()
            self._rests_until_s = ended_s + _REST * (took_s + ended_s - begun_s)
            self._is_looking = False
            if self._is_next:
                self._is_next = self._is_posted = False
                self.ask()
