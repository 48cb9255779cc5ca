"""What a server sets about its own process when it starts, each thing once and for a reason."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import sys
from pathlib import Path
from typing import Final

from tfs.core.system.limits import GROUPS, PROC, group_folders
from tfs.runtime.process.zygote_process import BINDING

log = logging.getLogger(__name__)

WANTED_FILES: Final = 65_536
"""Shells and service managers mostly begin with 1,024, for the sake of programs that use
``select``: too few for thousands of clients, and a server that runs out of them cannot read
its models either."""

SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread that runs Python keeps the interpreter lock from one that waits for it.

Loads, listings and probes run Python on threads beside the loop, and each answer may be
late by that interval. Python's default of 5 ms is made for throughput; an answer of this
server takes less than 1 ms. Even less did not help: at 0.1 ms, handing the lock over costs
what it gains."""


def open_missing_streams() -> None:
    """Opens /dev/null in the place of standard streams that the parent has closed.

    Otherwise the next socket or file would get their numbers, and what libraries print
    would go there.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is fd
            os.set_inheritable(fd, True)


def raise_file_limit(wanted: int = WANTED_FILES) -> int:
    """Raises this process's limit as far as it may; returns the limit in force.

    Processes started later inherit it. A limit that is higher already stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    # A sandbox may refuse what the kernel would allow.
    except (OSError, ValueError) as error:
        log.warning("event=file_limit_kept limit=%d error=%s", soft, error)
        return soft
    return allowed


def drop_thread_binding() -> None:
    """Takes out of the environment what would tie everything to one core, and says so.

    With these settings of OpenMP, importing torch binds the importing thread, and whatever
    it forks or starts inherits that. To be called before torch is imported.
    """
    found = [name for name in BINDING if os.environ.pop(name, None) is not None]
    if found:
        log.warning(
            "event=thread_binding_ignored variables=%s hint='they would confine the server "
            "and all processes of models to the cores of one thread; use taskset, or "
            "cpuset of the container'",
            ",".join(found),
        )


def kills_whole_group(proc: Path = PROC, groups: Path = GROUPS) -> bool:
    """Whether memory.oom.group is set for this process's control group or one above it."""
    for folder in group_folders("memory", proc, groups):
        with contextlib.suppress(OSError):
            if (folder / "memory.oom.group").read_text().strip() == "1":
                return True
    return False


def warn_of_group_kills() -> None:
    """Logs that the kernel ends everything here when memory runs out, not one worker."""
    if kills_whole_group():
        log.warning(
            "event=memory_oom_group hint='when memory runs out, the kernel ends the whole "
            "container and not the one worker that took it (memory.oom.group); Kubernetes: "
            "singleProcessOOMKill: true in the configuration of the kubelet'"
        )


def hand_over_soon() -> None:
    """Sets the interval after which threads hand the interpreter lock over; idempotent."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def freeze_imported() -> None:
    """Collects once, then exempts all existing objects from collections.

    A full collection visits every object and holds the interpreter lock: with torch imported,
    190,000 objects and some 90 ms in which no request is answered, at each unload and now and
    then in between. What exists before anything is served stays until the end. (torch is
    imported when the ports are open, and frozen before anything is loaded beside it:
    :meth:`tfs.server.placing.interpreters.Interpreters.prepare`.)

    Rejected: collecting less often, which keeps unloaded versions in memory; freezing again
    after each load, which would keep their cycles for good.
    """
    gc.collect()
    gc.freeze()
