"""When a process started, according to Linux."""

from __future__ import annotations

import os
import time

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
