"""How long a call really took its thread, on a machine that others use as well."""

from __future__ import annotations

from dataclasses import dataclass
from resource import RUSAGE_THREAD, getrusage, struct_rusage
from typing import Self


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """What a thread has used of the machine up to some moment. Immutable.

    Attributes:
        cpu_s: Seconds that it computed.
        num_waits: How often it gave up its core of its own accord: it slept, or waited
            for a lock, a file or another thread.

    """

    cpu_s: float
    num_waits: int

    @classmethod
    def of(cls, usage: struct_rusage) -> Self:
        """Returns the same in our words."""
        return cls(usage.ru_utime + usage.ru_stime, usage.ru_nvcsw)


def read_thread_use() -> struct_rusage:
    """Reads the calling thread's use; quick enough for every call."""
    return getrusage(RUSAGE_THREAD)


def own_s(wall_s: float, before: ThreadUse, after: ThreadUse) -> float:
    """Returns how long a call kept its thread by its own doing.

    A call that waited for anything counts with all the time that passed. One that did
    not counts with what it computed: what is missing, the kernel gave to others.
    """
    if after.num_waits != before.num_waits:
        return wall_s
    return min(wall_s, after.cpu_s - before.cpu_s)
