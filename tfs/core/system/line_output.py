"""Lines on stdout or stderr, whose reader may be slow, stop reading, or be gone.

A pipe that nobody reads, or a terminal after Ctrl-S, takes nothing once it is full. Whoever
waited for it would stop with it: the serving loop, and the main thread, which has to hear
SIGTERM. A thread of its own for writing would lose the last lines of a crash.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Final, TextIO

PATIENCE_S: Final = 1.0
"""How long a line waits for a reader that took the one before it."""

# A pipe that has room at all takes so much without blocking (PIPE_BUF).
_CHUNK_BYTES: Final = 4096


def is_writable(fd: int, patience_s: float) -> bool:
    """Waits until a file takes more, or fails; returns whether that came in time."""
    waiting = select.poll()
    waiting.register(fd, select.POLLOUT)
    return bool(waiting.poll(patience_s * 1000))


class LineOutput:
    """Writes whole lines to a stream; never raises, and never blocks for long.

    A line that cannot be written is lost. Those after it do not wait, until one can be
    written again; then it is said how many were lost. Thread-safe, because whatever
    two threads make of the count does no harm.

    Args:
        stream: Where to write, past its buffers: what they could not get rid of would
            change the exit code when Python ends. None, if the parent closed it, takes
            nothing.
        wait: Waits for room.

    """

    def __init__(
        self, stream: TextIO | None, wait: Callable[[int, float], bool] = is_writable
    ) -> None:
        self._stream = stream
        self._wait = wait
        self._num_lost = 0

    def write(self, line: str) -> None:
        """Writes a line, to which the line feed is added."""
        if self._stream is None:
            return
        patience_s = 0.0 if self._num_lost else PATIENCE_S
        text = f"{line}\n"
        if self._num_lost:
            text = f"tfs: {self._num_lost} lines before this one were lost\n{text}"
        try:
            fd = self._stream.fileno()
        except (OSError, ValueError):  # closed, or a double that is no file
            fd = -1
        try:
            if fd >= 0:
                self._write(fd, text.encode(errors="surrogateescape"), patience_s)
            else:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):
            self._num_lost += 1
        else:
            self._num_lost = 0

    def _write(self, fd: int, data: bytes, patience_s: float) -> None:
        while data:
            if not self._wait(fd, patience_s):
                raise TimeoutError
            data = data[os.write(fd, data[:_CHUNK_BYTES]) :]
