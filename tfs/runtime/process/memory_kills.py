"""Whether the kernel ended processes for want of memory, by its own count.

A SIGKILL does not say who sent it. If this count has grown since it was last looked at,
that was likely the kernel, for the whole machine or for a control group that was full.
The count is the whole machine's; that of a control group would be more exact, and is not
to be found in every container.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

_COUNT: Final = re.compile(rb"^oom_kill (\d+)$", re.M)


def num_memory_kills(path: str = "/proc/vmstat") -> int:
    """Returns the count since the machine started; 0 where the kernel keeps none."""
    try:
        found = _COUNT.search(Path(path).read_bytes())
    except OSError:
        return 0
    return int(found[1]) if found else 0


class MemoryKills:
    """Looks at the count when a process was killed. Confined to the loop.

    Args:
        count: Returns how many processes the kernel has ended for want of memory.
        num_seen: What ``count`` returned last.

    """

    def __init__(self, count: Callable[[], int], num_seen: int) -> None:
        self._count = count
        self._num_seen = num_seen

    @classmethod
    def from_now_on(cls, count: Callable[[], int] = num_memory_kills) -> MemoryKills:
        """Returns one that has seen what there was before."""
        return cls(count, count())

    def are_more(self) -> bool:
        """Returns whether there were any since the last look. Takes 0.1 ms."""
        num_before, self._num_seen = self._num_seen, self._count()
        return self._num_seen > num_before
