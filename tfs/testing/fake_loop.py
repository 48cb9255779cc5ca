"""A way onto the loop whose rounds a test runs by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tfs.core.clock import Clock


class FakeLoop:
    """Keeps what is posted until the test runs it. Confined to the test's thread.

    Args:
        clock: The clock by which ``post_at`` tells the time.

    Attributes:
        timers: Functions that were posted for a time and have not run, each with its
            time.

    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._posted: deque[Callable[[], None]] = deque()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def post(self, fn: Callable[[], None]) -> None:
        """See :class:`~tfs.core.loop.serving_loop.LoopEntry`."""
        self._posted.append(fn)

    def post_at(self, when_s: float, fn: Callable[[], None]) -> None:
        """See :class:`~tfs.core.loop.serving_loop.LoopEntry`."""
        self.timers.append((when_s, fn))

    @property
    def num_posted(self) -> int:
        """How many functions were posted without a time and have not run."""
        return len(self._posted)

    def run_posted(self) -> None:
        """Runs what was posted without a time, and what that posts in turn."""
        while self._posted:
            self._posted.popleft()()

    def run_due(self) -> None:
        """Runs the functions whose time has come, in the order of posting."""
        due = [each for each in self.timers if each[0] <= self._clock.now()]
        self.timers = [each for each in self.timers if each not in due]
        for _, fn in due:
            fn()
