"""A way onto the loop whose rounds a test runs by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tfs.core.clock import Clock


class FakeLoop:
    """Keeps what is posted until the test runs it. Confined to the test's thread.

    Args:
        clock: What the times of ``post_at`` go by.

    Attributes:
        timers: What was posted for a time and has not run, with that time.

    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._posted: deque[Callable[[], None]] = deque()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def post(self, fn: Callable[[], None]) -> None:
        """See :class:`~tfs.core.loop_entry.LoopEntry`."""
        self._posted.append(fn)

    def post_at(self, when_s: float, fn: Callable[[], None]) -> None:
        """See :class:`~tfs.core.loop_entry.LoopEntry`."""
        self.timers.append((when_s, fn))

    @property
    def num_posted(self) -> int:
        """How many functions wait that are to run soon."""
        return len(self._posted)

    def run_posted(self) -> None:
        """Runs what was posted, and what that posts."""
        while self._posted:
            self._posted.popleft()()

    def run_due(self) -> None:
        """Runs what was posted for a time that has come, in the order it was posted."""
        due = [each for each in self.timers if each[0] <= self._clock.now()]
        self.timers = [each for each in self.timers if each not in due]
        for _, fn in due:
            fn()
