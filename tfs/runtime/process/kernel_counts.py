"""What the kernel counts, and does not tell whoever meets it.

A SIGKILL does not say who sent it. If the count of processes that the kernel ended for
want of memory has grown since it was last looked at, that was likely the kernel, for the
whole machine or for a control group that was full. That count is the whole machine's;
that of a control group would be more exact, and is not to be found in every container.

Likewise a library that gets no thread (libgomp) ends its process with status 1. If a
control group has refused processes meanwhile, its limit was the reason.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tfs.core.system.control_groups import GROUPS, PROC, group_folders

_KILLS: Final = re.compile(rb"^oom_kill (\d+)$", re.M)
_REFUSED: Final = re.compile(rb"^max (\d+)$", re.M)


def num_memory_kills(path: str = "/proc/vmstat") -> int:
    """Returns the count since the machine started; 0 where the kernel keeps none."""
    try:
        found = _KILLS.search(Path(path).read_bytes())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def num_refused_processes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Returns how many threads and processes this control group, and those above, refused."""
    num = 0
    for folder in {*group_folders("pids", proc, groups)}:
        with contextlib.suppress(OSError):
            found = _REFUSED.search((folder / "pids.events").read_bytes())
            num += int(found[1]) if found else 0
    return num


class KernelCount:
    """Looks at a count when something has ended. Confined to the loop.

    Args:
        count: Returns the count.
        num_seen: What ``count`` returned last.

    """

    def __init__(self, count: Callable[[], int], num_seen: int) -> None:
        self._count = count
        self._num_seen = num_seen

    @classmethod
    def of_memory_kills(
        cls, count: Callable[[], int] = num_memory_kills
    ) -> KernelCount:
        """Returns the count of processes ended for memory, from now on."""
        return cls(count, count())

    @classmethod
    def of_refused_processes(cls) -> KernelCount:
        """Returns the count of threads and processes that were refused, from now on."""
        return cls(num_refused_processes, num_refused_processes())

    def is_more(self) -> bool:
        """Returns whether it has grown since the last look. Takes 0.1 ms."""
        num_before, self._num_seen = self._num_seen, self._count()
        return self._num_seen > num_before
