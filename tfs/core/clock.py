"""Time as a constructor argument, so that tests own it."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time, wall time, and waits bounded by either. Thread-safe.

    Implementors promise: ``now`` never goes back; ``wait`` returns no later than
    its deadline *by this clock*, and may return early.
    """

    def now(self) -> float:
        """Returns monotonic seconds; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Returns seconds since the epoch."""
        ...

    def wait(
        self, condition: threading.Condition, deadline_s: float | None = None
    ) -> None:
        """Blocks on a held condition until notified or until the deadline.

        May wake early; callers loop over their predicate.
        """
        ...


class MonotonicClock:
    """The machine's clock. Thread-safe."""

    now = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)

    def wait(
        self, condition: threading.Condition, deadline_s: float | None = None
    ) -> None:
        """Blocks as :meth:`Clock.wait` says."""
        if deadline_s is None:
            condition.wait()
            return
        remaining_s = deadline_s - time.monotonic()
        if remaining_s > 0:
            # threading refuses waits beyond its maximum; early returns are allowed.
            condition.wait(min(remaining_s, 3600.0))


def join_by(thread: threading.Thread, deadline_s: float | None, clock: Clock) -> bool:
    """Blocks until a thread has ended; returns whether it had by the deadline.

    Args:
        thread: Another thread than the caller's.
        deadline_s: By ``clock``; None and infinity wait as long as it takes.
        clock: Tells how much time is left.

    """
    timeout_s = None
    if deadline_s is not None:
        # ``join`` raises for a wait of more than some 292 years.
        left_s = min(deadline_s - clock.now(), threading.TIMEOUT_MAX)
        timeout_s = max(0.0, left_s)
    thread.join(timeout_s)
    return not thread.is_alive()
