"""Waits for a thread to end, but no longer than until a deadline."""

from __future__ import annotations

import threading

from tfs.core.clock import Clock


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
