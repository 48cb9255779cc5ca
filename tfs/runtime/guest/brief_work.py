"""Background work of a worker that is short enough to be left to idle time.

Nobody who wakes up waits for a thread that has idle time only
(:func:`~tfs.core.thread_priority.give_way`), but on a host that is never idle such a
thread hardly runs, and without privileges it cannot be made to. So it is for work that
was seen to be quick: when the same was done last in this process, for a version of the
same code. What took long is done at the lowest priority the next time, be it that there is
much to do or that the host had no idle time for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

BRIEF_S: Final = 0.2
"""Longest brief work, by the wall clock, because waiting counts."""


class BriefWork:
    """How long each kind of work took last. Thread-safe.

    Who works on two things at once may see less of it than there is.

    Args:
        now: The time in seconds.

    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._code_digest = ""
        self._took_s: dict[object, float] = {}

    def note_code(self, code_digest: str) -> None:
        """Forgets what was seen of other code.

        Args:
            code_digest: Of the version that is worked on next; empty where nobody
                knows, which counts as other code.

        """
        if not code_digest or code_digest != self._code_digest:
            self._took_s = {}
        self._code_digest = code_digest

    def is_brief(self, kind: object) -> bool:
        """Whether such work was quick the last time; no if it was never done."""
        return self._took_s.get(kind, math.inf) < BRIEF_S

    @contextmanager
    def measured(self, kind: object) -> Iterator[None]:
        """Notes how long the block takes, however it ends."""
        begun_s, took_s = self._now(), self._took_s
        try:
            yield
        finally:
            took_s[kind] = self._now() - begun_s
