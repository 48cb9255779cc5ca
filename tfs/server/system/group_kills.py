"""Whether the kernel ends everything here when memory runs out, and not one worker."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from tfs.core.control_groups import GROUPS, PROC, group_folders

log = logging.getLogger(__name__)


def kills_whole_group(proc: Path = PROC, groups: Path = GROUPS) -> bool:
    """Whether memory.oom.group is set for this process's control group or one above it."""
    for folder in group_folders("memory", proc, groups):
        with contextlib.suppress(OSError):
            if (folder / "memory.oom.group").read_text().strip() == "1":
                return True
    return False


def warn_of_group_kills() -> None:
    """Logs it, once, at the start."""
    if kills_whole_group():
        log.warning(
            "event=memory_oom_group hint='when memory runs out, the kernel ends the whole "
            "container and not the one worker that took it (memory.oom.group); Kubernetes: "
            "singleProcessOOMKill: true in the configuration of the kubelet'"
        )
