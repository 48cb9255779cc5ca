"""When processes started and what memory they hold, as Linux counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from tfs.core.process_memory import proportional_bytes


def tree_resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process tree; 0 where it cannot be read.

    Memory that processes share is counted once, in equal parts; if the system does not
    tell the parts, it is counted once per process. Takes about a millisecond for each
    process.
    """
    return resident_bytes_of(_tree(pid))


def resident_bytes_of(pids: Iterable[int]) -> int:
    """Returns the resident memory of some processes, counted in the same way."""
    return sum(proportional_bytes(pid) or 0 for pid in pids)


def _tree(pid: int) -> Iterator[int]:
    """Yields a process and its descendants; those that end meanwhile may be left out."""
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += _children(each)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{thread}/children"
            with open(path, encoding="ascii") as file:
                children += map(int, file.read().split())
    except (OSError, ValueError):
        pass  # it ended meanwhile
    return children


# After the name in /proc/PID/stat: the start, in clock ticks since boot.
_START_FIELD = 19


def started_s(pid: int) -> float | None:
    """Returns seconds since the epoch, exact to a few hundredths; None if unknown.

    It is computed from the boot clock, so that setting the wall clock later does not
    matter.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in brackets, may itself contain blanks and
            # brackets.
            fields = file.read().rpartition(b")")[2].split()
        ticks = int(fields[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
