"""When a process started, as Linux knows it."""

from __future__ import annotations

import os
import time

_START_FIELD = 19  # of what follows the name in /proc/PID/stat: ticks since boot


def started_s(pid: int) -> float | None:
    """Returns seconds since the epoch, exact to a few hundredths; None if unknown.

    By the boot clock, so that a wall clock that was set since does not matter.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before may hold blanks and brackets.
            fields = file.read().rpartition(b")")[2].split()
        ticks = int(fields[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
