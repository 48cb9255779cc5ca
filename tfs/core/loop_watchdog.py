"""Says where a serving loop is while one of its rounds takes too long.

Whatever blocks the loop blocks every request, and once the round is over nothing tells
what it was. So another thread looks now and then, and logs the loop's stack while the
round is still running. This costs the loop itself nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Final

from tfs.core.serving_loop import ServingLoop

log = logging.getLogger(__name__)

_LOOKS_PER_LIMIT: Final = 2
_PATIENCE_GROWS_BY: Final = 10


class LoopWatchdog:
    """Watches one loop from a daemon thread of its own.

    ``start`` and ``close`` are for one thread. Code that holds the global interpreter
    lock without a break can be seen only once it lets go.

    Attributes:
        num_reports: Stacks written.

    Args:
        loop: The loop that is watched; it may end first.
        limit_s: A round that takes longer is reported, and again each time it has taken
            ten times as long.

    """

    def __init__(self, loop: ServingLoop, limit_s: float = 0.1) -> None:
        if limit_s <= 0:
            raise ValueError(f"limit_s must be positive: {limit_s}")
        self.num_reports = 0
        self._loop = loop
        self._limit_s = limit_s
        self._seen_s: float | None = None  # when the round began that was seen last
        self._next_s = limit_s  # how long it may take until it is reported
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look."""
        self._thread = threading.Thread(
            target=self._run, name="loop-watchdog", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops looking; idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Looks once, and reports a round that has become too long."""
        since_s = self._loop.busy_since_s
        if since_s is None:
            return
        if since_s != self._seen_s:
            self._seen_s = since_s
            self._next_s = self._limit_s
        took_s = self._loop.clock.now() - since_s
        if took_s < self._next_s:
            return
        frame = sys._current_frames().get(self._loop.thread_ident)
        if frame is None or self._loop.busy_since_s != since_s:
            return  # over: the frame is another round's
        self._next_s = took_s * _PATIENCE_GROWS_BY
        self.num_reports += 1
        log.warning(
            "event=slow_round_stack loop=%s took_s=%.3f still_in:\n%s",
            self._loop.name,
            took_s,
            "".join(traceback.format_stack(frame)).rstrip(),
        )

    def _run(self) -> None:
        while not self._closing.wait(self._limit_s / _LOOKS_PER_LIMIT):
            try:
                self.look()
            except Exception:
                log.exception("event=loop_watchdog_failed loop=%s", self._loop.name)
