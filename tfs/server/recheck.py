"""Runs one check of everything after changes: soon, but not too often.

While a thousand models load, a check of all of them after each event would use most of
a core. So each check is followed by a pause of several times its own length. With tens
of thousands of models a check takes a second, so it never runs on the serving loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import LoopEntry

_REST: Final = 10  # the pause after a look, in multiples of its length


class Recheck:
    """Takes one look after all changes of a round of the loop. Thread-safe.

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
        # Only used on the loop: whether a look is under way, and whether another was
        # asked for since it began.
        self._is_looking = False
        self._is_next = False

    def ask(self) -> None:
        """Has a look begin after this call; returns at once, on any thread."""
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
        # The executor refuses work when the server shuts down. Waiters are told of that
        # elsewhere, so no look is needed.
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
