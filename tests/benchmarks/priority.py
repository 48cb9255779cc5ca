"""Lets what is measured run before whatever else the machine does.

A rate, or a latency, of two programs that wait for each other tells little where a
third takes a core for some milliseconds now and then: all that it takes counts as
theirs. Processor time hardly shows it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def ahead_of_others() -> Iterator[bool]:
    """Puts this thread, and what it starts meanwhile, ahead of ordinary processes.

    Yields whether it may be so: by the kernel's real-time class, for which a user other
    than root needs a limit (`ulimit -r`). What was started stays ahead to its end, this
    thread does not.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(
            0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
        )
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, parameters)
