"""Becomes another program, within limits: ``python -m tfs.hosted.jobs.limited``.

The limits are set in the process that becomes the program, so that all its threads and
children have them from their beginning.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence


def limited(command: Sequence[str], data_bytes: int, cpus: Sequence[int]) -> list[str]:
    """Returns the command line that runs ``command`` within limits.

    Args:
        command: The program, by its path, and its arguments.
        data_bytes: How much private memory each of its processes may have.
        cpus: The processors that it may use.

    """
    own = "import sys; from tfs.hosted.jobs.limited import main; main(sys.argv)"
    mask = ",".join(map(str, cpus))
    return [sys.executable, "-c", own, str(data_bytes), mask, *command]


def main(argv: list[str]) -> None:
    """Sets the limits of the command line, and becomes its program."""
    data_bytes, mask, command = int(argv[1]), argv[2], argv[3:]
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]  # of whoever started this
    if most != resource.RLIM_INFINITY:
        data_bytes = min(data_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    os.sched_setaffinity(0, [int(each) for each in mask.split(",")])
    os.execv(command[0], command)
