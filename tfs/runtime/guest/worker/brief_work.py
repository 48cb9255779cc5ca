"""Background work of a worker that is short enough to be done in idle time.

A thread that runs in idle time only (:func:`~tfs.core.thread_priority.give_way`) holds
up nobody who wakes up. But on a host that is never idle it hardly runs, and without
privileges its priority cannot be raised again. So this is only for work that is known
to be quick: it was, the last time that this process did it for a version with the same
code. Work that took long is done at the lowest priority the next time, whether because
there is much to do or because the host had no idle time for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

BRIEF_S: Final = 0.2
"""The longest time that brief work takes, by the wall clock, because waiting counts."""


class BriefWork:
    """Remembers how long each kind of work took the last time. Thread-safe.

    If two kinds of work are done at once, each may be taken for quicker than it is.

    Args:
        now: The time in seconds.

    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._code_digest = ""
        self._took_s: dict[object, float] = {}

    def note_code(self, code_digest: str) -> None:
        """Forgets the times of other code.

        Args:
            code_digest: The digest of the version that comes next; empty if unknown,
                which counts as other code.

        """
        if not code_digest or code_digest != self._code_digest:
            self._took_s = {}
        self._code_digest = code_digest

    def is_brief(self, kind: object) -> bool:
        """Whether such work was quick the last time; False if it was never done."""
        return self._took_s.get(kind, math.inf) < BRIEF_S

    @contextmanager
    def measured(self, kind: object) -> Iterator[None]:
        """Records how long the block takes, however it ends."""
        begun_s, took_s = self._now(), self._took_s
        try:
            yield
        finally:
            took_s[kind] = self._now() - begun_s
