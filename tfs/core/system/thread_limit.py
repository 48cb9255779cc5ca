"""How many threads and processes there may be, who says so, and what to do about it.

The system counts threads and processes as one thing, for each user and for each control
group, and says of neither which limit it was that refused one: ``can't start new thread``.
"""

from __future__ import annotations

import resource
from pathlib import Path

from tfs.core.system.control_groups import GROUPS, PROC, group_folders


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
