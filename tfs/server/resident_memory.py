"""Memory of a process and its descendants, as Linux counts it."""

from __future__ import annotations

import os


def tree_resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process tree; 0 where it cannot be read.

    What processes share is counted once per process: an upper bound.
    """
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        try:
            with open(f"/proc/{each}/statm", encoding="ascii") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for thread in os.listdir(f"/proc/{each}/task"):
                path = f"/proc/{each}/task/{thread}/children"
                with open(path, encoding="ascii") as file:
                    waiting += map(int, file.read().split())
        except (OSError, ValueError, IndexError):
            continue  # it ended while we looked
    return total
