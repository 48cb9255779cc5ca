"""Memory of a process and its descendants, as Linux counts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def tree_resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process tree; 0 where it cannot be read.

    Memory that processes share is counted once, in equal parts; if the system does not
    tell the parts, it is counted once per process. Takes about a millisecond for each
    process.
    """
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        try:
            total += _proportional_bytes(each)
            for thread in os.listdir(f"/proc/{each}/task"):
                path = f"/proc/{each}/task/{thread}/children"
                with open(path, encoding="ascii") as file:
                    waiting += map(int, file.read().split())
        except (OSError, ValueError, IndexError):
            continue  # the process ended meanwhile
    return total


def resident_bytes(pids: Iterable[int]) -> int:
    """Returns the resident memory of some processes, counted in the same way."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):  # the process ended
            total += _proportional_bytes(pid)
    return total


def _proportional_bytes(pid: int) -> int:
    rollup = f"/proc/{pid}/smaps_rollup"
    with contextlib.suppress(OSError), open(rollup, encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
