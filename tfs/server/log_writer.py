"""The thread that writes request logs, so that no request waits for a disk.

Records wait in a bounded queue; what does not fit is dropped and counted, because a
slow disk must cost log lines and not answers.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Final

from tfs.codec.tfrecord import frame
from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument
from tfs.core.stats import Stats

log = logging.getLogger(__name__)

_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LogWriterOptions:
    """How much waits, and how large files grow. Immutable.

    Attributes:
        max_queued_records: Records that may wait.
        max_queued_bytes: What they may hold.
        max_file_bytes: A file that has reached this is closed, and the next begun.

    """

    max_queued_records: int = 10_000
    max_queued_bytes: int = 64 << 20
    max_file_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be positive: {getattr(self, name)}")


class RotatedFile:
    """Record files ``PREFIX-YYYYMMDD-HHMMSS-N.tfrecord``. Confined to the log writer.

    A file is made when the first record comes; records are whole in it after
    ``flush``. Nothing is ever deleted.
    """

    def __init__(self, prefix: str, max_bytes: int, clock: Clock) -> None:
        self.prefix = prefix
        self._max_bytes = max_bytes
        self._clock = clock
        self._file: BinaryIO | None = None
        self._num_bytes = 0

    def write(self, record: bytes) -> None:
        """Appends a record.

        Raises:
            OSError: It could not; the file it was meant for is closed.

        """
        framed = frame(record)
        try:
            if self._file is not None and self._num_bytes >= self._max_bytes:
                self.close()
            if self._file is None:
                self._file = self._open()
                self._num_bytes = 0
            self._file.write(framed)
        except OSError:
            self._abandon()
            raise
        self._num_bytes += len(framed)

    def flush(self) -> None:
        """Hands what was written to the operating system.

        Raises:
            OSError: It could not; the file is closed.

        """
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self._abandon()
                raise

    def close(self) -> None:
        """Ends the file; the next record begins another."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                log.debug("event=request_log_close_failed prefix=%s", self.prefix)

    def _open(self) -> BinaryIO:
        os.makedirs(os.path.dirname(self.prefix) or ".", exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._clock.wall_s()))
        index = 0
        while True:
            path = f"{self.prefix}-{stamp}-{index}.tfrecord"
            try:
                return open(path, "xb")
            except FileExistsError:  # rotated within a second, or a server before us
                index += 1


@dataclass(frozen=True, slots=True)
class _Item:
    """What to do next: write a record, or close a file."""

    file: RotatedFile
    size_bytes: int = 0
    make: Callable[[], bytes] | None = None


class LogWriter:
    """Writes records on a thread of its own. Thread-safe.

    ``submit`` never blocks for longer than an append and never raises. Tests call
    ``write_pending`` instead of ``start``.
    """

    def __init__(
        self, clock: Clock, stats: Stats, options: LogWriterOptions | None = None
    ) -> None:
        self.options = options or LogWriterOptions()
        self.clock = clock
        self._num_written = stats.counter(stat_names.LOG_RECORDS)
        self._num_dropped = {
            reason: stats.counter(stat_names.LOG_DROPPED, reason=reason)
            for reason in ("queue", "disk")
        }
        # Guards the fields below; leaf: nothing is called, written or made under it.
        self._changed = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._num_bytes = 0
        self._files: list[RotatedFile] = []
        self._closed = False
        self._thread: threading.Thread | None = None
        # The writer's own: whether the last write failed, so that a full disk is one
        # line in the log and not one a record.
        self._failing = False

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(
            target=self._run, name="log-writer", daemon=True
        )
        self._thread.start()

    def open(self, prefix: str) -> RotatedFile:
        """Returns files for ``submit``; none is made before the first record."""
        file = RotatedFile(prefix, self.options.max_file_bytes, self.clock)
        with self._changed:
            self._files.append(file)
        return file

    def submit(
        self, file: RotatedFile, size_bytes: int, make: Callable[[], bytes]
    ) -> bool:
        """Queues a record of about ``size_bytes``, which ``make`` returns later.

        Returns False, and counts it as dropped, if there is no room.
        """
        with self._changed:
            taken = (
                not self._closed
                and len(self._queue) < self.options.max_queued_records
                and self._num_bytes + size_bytes <= self.options.max_queued_bytes
            )
            if taken:
                self._queue.append(_Item(file, size_bytes, make))
                self._num_bytes += size_bytes
                self._changed.notify_all()
        if not taken:
            self._num_dropped["queue"].add()
        return taken

    def close_file(self, file: RotatedFile) -> None:
        """Closes a file after what was queued for it."""
        with self._changed:
            self._queue.append(_Item(file))
            self._changed.notify_all()

    def close(self) -> None:
        """Writes what is queued, ends the thread; blocks a few seconds at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_S)
            if thread.is_alive():
                log.warning("event=request_log_incomplete at=close")
                return
        self.write_pending()
        for file in self._files:
            self._attempt(file.close)

    def write_pending(self) -> None:
        """Writes what is queued now. On the writer's thread, or a test's without it."""
        with self._changed:
            items = list(self._queue)
            self._queue.clear()
        touched: dict[int, RotatedFile] = {}
        for item in items:
            if item.make is None:
                self._attempt(item.file.close)
                with self._changed:
                    self._files.remove(item.file)
                continue
            if self._attempt(functools.partial(_write, item.file, item.make)):
                self._num_written.add()
                touched[id(item.file)] = item.file
            else:
                self._num_dropped["disk"].add()
            with self._changed:
                self._num_bytes -= item.size_bytes
        for file in touched.values():
            self._attempt(file.flush)

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except Exception as error:
            if not self._failing:
                self._failing = True
                log.error("event=request_log_unwritable problem=%s", error)
            return False
        self._failing = False
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
            self.write_pending()


def _write(file: RotatedFile, make: Callable[[], bytes]) -> None:
    file.write(make())
