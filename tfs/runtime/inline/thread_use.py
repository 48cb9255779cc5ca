"""Measures how long a call really took, on a machine that others use as well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_THREAD, getrusage, struct_rusage
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """How much a thread has used the machine up to some moment. Immutable.

    Attributes:
        cpu_s: Seconds that it computed.
        num_waits: How often it gave up its core by itself, because it slept, or waited
            for a lock, a file or another thread.

    """

    cpu_s: float
    num_waits: int

    @classmethod
    def of(cls, usage: struct_rusage) -> Self:
        """Converts from what the system reports."""
        return cls(usage.ru_utime + usage.ru_stime, usage.ru_nvcsw)


read_thread_use: Final[Callable[[], struct_rusage]] = partial(getrusage, RUSAGE_THREAD)
"""Reads the calling thread's use; quick enough for every call."""


class SlowCalls:
    """Tells slow calls of a model from calls that the machine made slow.

    Confined to the thread that calls. A call that computed for longer than the limit is
    slow. A call that waited for longer may have slept, or may have waited for another
    thread that had Python's lock and got no core. A thread that waits for Python's lock
    wakes once in every switch interval (``sys.getswitchinterval``). If a call waited
    beyond the limit even when one interval is subtracted for each wait, it slept, and
    is slow. Any other call that waited is slow only if there was another one a short
    while ago. Time in which a call neither computed nor waited was given to other
    threads by the kernel.

    Args:
        limit_s: How long a call may take.

    """

    __slots__ = ("_limit_s", "_num_calls_at_wait")

    _FORGIVEN_AFTER: Final = 1000  # calls

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._num_calls_at_wait: int | None = None

    def own_s(
        self, num_calls: int, wall_s: float, before: ThreadUse, after: ThreadUse
    ) -> float:
        """Returns the seconds that a call beyond the limit itself took.

        Args:
            num_calls: How many there were before.
            wall_s: How long it lasted.
            before: What its thread had used when it began.
            after: What it had used when it ended.

        """
        computed_s = min(wall_s, after.cpu_s - before.cpu_s)
        if computed_s > self._limit_s or after.num_waits == before.num_waits:
            return computed_s
        num_waits = after.num_waits - before.num_waits
        for_lock_s = num_waits * sys.getswitchinterval()
        if wall_s - computed_s - for_lock_s > self._limit_s:
            return wall_s
        previous, self._num_calls_at_wait = self._num_calls_at_wait, num_calls
        if previous is None or num_calls - previous > self._FORGIVEN_AFTER:
            return computed_s
        return wall_s
