"""What this process is limited to: cores, threads and processes, by whom, and what to do.

Containers, services and pods are limited by files of these groups. A container with
``--cpus=2`` on a host of 64 may run on every core, for two cores' worth of time: one process
per core that it sees would be 62 too many, each with memory of its own, and all of them
stopped together for the rest of a period once the share is used up.

The system counts threads and processes as one thing, for each user and for each control
group, and says of neither which limit it was that refused one: ``can't start new thread``.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
"""Where Linux describes processes."""

GROUPS: Final = Path("/sys/fs/cgroup")
"""Where control groups are mounted."""


def group_folders(
    controller: str, proc: Path = PROC, groups: Path = GROUPS
) -> Iterator[Path]:
    """Yields the folders that may limit this process, its own group's and those above.

    Not all of them exist: within a container the path that the kernel tells may be the
    host's, and then the root is the container's own group.

    Args:
        controller: What is limited, by its name in version 1: "pids", "cpu". Groups of
            version 2 have one folder for all.
        proc: Where Linux describes processes.
        groups: Where control groups are mounted.

    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controllers if controllers else groups
        inner = path.strip("/")
        yield root
        if inner:
            yield root / inner
            yield from (root / inner).parents


def num_processors(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Returns how many cores this process may keep busy, at least 1.

    These are the cores that it may run on, or fewer if a quota of its control groups
    says so (``--cpus`` of docker, CPU limits of Kubernetes, ``CPUQuota=`` of systemd);
    part of a core counts as one.

    Args:
        proc: Where the kernel tells of processes.
        groups: Where control groups are mounted.

    """
    cores = float(len(os.sched_getaffinity(0)))
    for folder in group_folders("cpu", proc, groups):
        cores = min(cores, _share(folder))
    return max(1, math.ceil(cores))


def _share(folder: Path) -> float:
    """Returns how many cores a group may use; infinite without a quota."""
    try:
        words = (folder / "cpu.max").read_text().split()
    except OSError:
        try:  # of version 1; a quota of -1 is none
            words = [
                (folder / f"cpu.cfs_{name}_us").read_text().strip()
                for name in ("quota", "period")
            ]
        except OSError:
            return math.inf
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return math.inf
    quota_us, period_us = map(int, words)
    return quota_us / period_us


def thread_limits(proc: Path = PROC, groups: Path = GROUPS) -> str:
    """Returns the limits in force, for people, each with where it is raised.

    Args:
        proc: Where the kernel tells of processes.
        groups: Where control groups are mounted.

    """
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        found.append(
            f"this user may have {soft} processes and threads (ulimit -u; LimitNPROC= "
            "of systemd)"
        )
    most, taken = _group_limit(proc, groups)
    if most is not None:
        taken_words = "" if taken is None else f", and has {taken}"
        found.append(
            f"this control group may have {most}{taken_words} (pids.max; TasksMax= of "
            "systemd, --pids-limit of docker, podPidsLimit of Kubernetes)"
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        found.append(
            f"this process may have {space >> 20} MiB of addresses (ulimit -v), of which "
            "a thread takes 8 and more"
        )
    return "; ".join(found) or "no limit of this user or control group is known"


def _group_limit(proc: Path, groups: Path) -> tuple[int | None, int | None]:
    """Returns the lowest pids.max of the process's control group and those above it.

    And how many there are in that one; None for what is not limited, or not known.
    """
    lowest: tuple[int | None, int | None] = (None, None)
    for folder in group_folders("pids", proc, groups):
        most = _number(folder / "pids.max")
        if most is not None and (lowest[0] is None or most < lowest[0]):
            lowest = most, _number(folder / "pids.current")
    return lowest


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
