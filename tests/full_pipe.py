"""A pipe that nobody reads."""

from __future__ import annotations

import contextlib
import os


def fill(fd: int) -> None:
    """Writes to a pipe until it takes nothing more; writers block from then on."""
    os.set_blocking(fd, False)
    for size in (4096, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(fd, b"x" * size)
    os.set_blocking(fd, True)
