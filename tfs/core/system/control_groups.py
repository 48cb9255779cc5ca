"""Which control groups this process is in, and where their limits are read.

Containers, services and pods are limited by files of these groups. Nothing here knows a
limit by name; :mod:`tfs.core.system.thread_limit` and :mod:`tfs.core.system.processor_share` do.
"""

from __future__ import annotations

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
