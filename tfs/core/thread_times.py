"""What a thread's time went into, as the kernel counts it.

A thread that took long has computed, or stood in line for a processor, or slept: for a
lock, Python's included, a disk or a system call. Only the second is the machine's doing.
"""

from __future__ import annotations

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


def thread_times(native_ident: int) -> ThreadTimes | None:
    """Returns what a thread of this process spent; None where the kernel does not say.

    Args:
        native_ident: The system's number of the thread.

    """
    try:
        with open(f"/proc/self/task/{native_ident}/schedstat", "rb") as file:
            ran_ns, queued_ns, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return ThreadTimes(ran_ns / 1e9, queued_ns / 1e9)
