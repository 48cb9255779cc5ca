"""What a thread's time went into, as the kernel counts it.

A thread that took long has computed, or stood in line for a processor, or slept: for a
lock, Python's included, a disk or a system call. Only the second is the machine's doing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


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
