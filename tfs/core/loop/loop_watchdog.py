"""Logs where a serving loop is while one of its rounds takes too long.

Whatever blocks the loop blocks every request, and once the round is over nothing tells
what it was. So another thread looks now and then, and logs the loop's stack while the
round is still running. This costs the loop itself nothing.

Time in which others had all processors does not count as the round's: on a busy machine
any round may take long, and its stack would accuse whatever stood there. The kernel tells
that time from what a thread computed, or slept: for a lock, a disk or a system call.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tfs.core.loop.serving_loop import ServingLoop

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
        times: Tells what a thread spent, by the system's number of it; by default the
            kernel.

    """

    def __init__(
        self,
        loop: ServingLoop,
        limit_s: float = 0.1,
        times: Callable[[int], ThreadTimes | None] | None = None,
    ) -> None:
        if limit_s <= 0:
            raise ValueError(f"limit_s must be positive: {limit_s}")
        self.num_reports = 0
        self._loop = loop
        self._limit_s = limit_s
        self._reader = ThreadTimesReader()
        self._times = times or self._reader.read
        self._seen_s: float | None = None  # when the round began that was seen last
        self._next_s = limit_s  # how long it may take until its stack is logged
        self._before: ThreadTimes | None = None  # when that round was first seen
        self._last: ThreadTimes | None = None  # at the look before this one
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
        self._reader.close()

    def look(self) -> None:
        """Looks once, and reports a round that has become too long."""
        since_s = self._loop.busy_since_s
        last, self._last = self._last, self._times(self._loop.native_ident)
        if since_s is None:
            return
        took_s = self._loop.clock.now() - since_s
        if since_s != self._seen_s:
            self._seen_s = since_s
            self._next_s = self._limit_s
            # A round that takes too long may also have kept this thread from looking.
            self._before = self._last if took_s < self._limit_s else last
        if took_s < self._next_s:
            return
        spent = self._spent()
        own_s = took_s if spent is None else took_s - spent.queued_s
        if own_s < self._next_s:
            return
        frame = sys._current_frames().get(self._loop.thread_ident)
        if frame is None or self._loop.busy_since_s != since_s:
            return  # the round is over, and the frame belongs to another one
        self._next_s = own_s * _PATIENCE_GROWS_BY
        self.num_reports += 1
        known = spent or ThreadTimes(math.nan, math.nan)
        log.warning(
            "event=slow_round_stack loop=%s took_s=%.3f ran_s=%.3f queued_s=%.3f "
            "still_in:\n%s",
            self._loop.name,
            took_s,
            known.ran_s,
            known.queued_s,
            "".join(traceback.format_stack(frame)).rstrip(),
        )

    def _spent(self) -> ThreadTimes | None:
        """Returns what the loop spent since its round was first seen, if that is known."""
        before, last = self._before, self._last
        return None if before is None or last is None else last.since(before)

    def _run(self) -> None:
        while not self._closing.wait(self._limit_s / _LOOKS_PER_LIMIT):
            try:
                self.look()
            except Exception:
                log.exception("event=loop_watchdog_failed loop=%s", self._loop.name)


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds since the thread began.

    Attributes:
        ran_s: On a processor.
        queued_s: Ready to run, while others had the processors.

    """

    ran_s: float
    queued_s: float

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """Returns what came to it after ``before`` was read."""
        return ThreadTimes(self.ran_s - before.ran_s, self.queued_s - before.queued_s)


class ThreadTimesReader:
    """Reads what one thread of this process spent. Confined to one thread at a time.

    The kernel's file stays open: to open it each time takes ten times as long, and it
    is read twenty times a second.
    """

    def __init__(self) -> None:
        self._native_ident = 0
        self._fd = -1

    def read(self, native_ident: int) -> ThreadTimes | None:
        """Returns what a thread spent so far; None where the kernel does not say.

        Args:
            native_ident: The system's number of the thread.

        """
        try:
            if native_ident != self._native_ident:
                self.close()
                self._native_ident = native_ident
                self._fd = os.open(
                    f"/proc/self/task/{native_ident}/schedstat", os.O_RDONLY
                )
            if self._fd < 0:
                return None  # it could not be opened
            ran_ns, queued_ns, *_ = map(int, os.pread(self._fd, 96, 0).split())
        except (OSError, ValueError):
            return None
        return ThreadTimes(ran_ns / 1e9, queued_ns / 1e9)

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._native_ident = 0
