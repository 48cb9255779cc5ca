"""A process that has no descriptors left, as one has whose clients took them all."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator
from typing import Final

_SPARE: Final = 8


@contextlib.contextmanager
def files_left(num_left: int) -> Iterator[None]:
    """Lets this process open so many further files, and no more."""
    gc.collect()  # what earlier tests left must not free files meanwhile
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    most = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + _SPARE, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(num_left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)
