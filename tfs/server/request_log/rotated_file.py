"""Record files that follow each other, and how many of them are kept."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable
from io import FileIO
from typing import Final, TypeAlias

from tfs.codec.tfrecord import frame
from tfs.core.clock import Clock

log = logging.getLogger(__name__)

_SUFFIX: Final = re.compile(r"-([0-9]{8}-[0-9]{6})-([0-9]+)\.tfrecord")
# The largest share of a prefix's bytes that one file takes, so that deleting the oldest
# file does not delete most of the log.
_LARGEST_SHARE: Final = 4
_MAX_PENDING_BYTES: Final = 1 << 20

OnWritten: TypeAlias = Callable[[int, OSError | None], None]
"""Takes a number of records that are now in the file, or lost because of the error; quick."""


class RotatedFile:
    """Record files ``PREFIX-YYYYMMDD-HHMMSS-N.tfrecord``. Confined to the log writer.

    A file is made when the first record comes; records are in it after ``flush``.
    Whenever a file is made, the oldest files of the prefix, by their names and
    whichever server wrote them, are deleted as far as the limits require.

    A file contains only whole records, whatever fails: parts of records that a full
    disk took are cut off again, and the file goes on from there. If somebody deletes or
    moves the file, the next records begin another.

    Args:
        prefix: Absolute path with which the names begin.
        on_written: Called once for every record.
        max_bytes: A file that has reached this size is followed by the next.
        clock: Provides the times in the files' names.
        max_files: Files that are kept, including the one that is being written; 0 keeps
            all.
        max_total_bytes: Bytes of all files together, give or take a record; 0 is no
            limit. Files are closed earlier if this requires it.

    """

    def __init__(
        self,
        prefix: str,
        on_written: OnWritten,
        max_bytes: int,
        clock: Clock,
        *,
        max_files: int = 0,
        max_total_bytes: int = 0,
    ) -> None:
        self.prefix = prefix
        self._on_written = on_written
        self._max_bytes = max_bytes
        if max_total_bytes:
            self._max_bytes = min(max_bytes, max(1, max_total_bytes // _LARGEST_SHARE))
        self._max_files = max_files
        self._max_total_bytes = max_total_bytes
        self._clock = clock
        self._file: FileIO | None = None
        self._num_bytes = 0
        self._pending = bytearray()
        self._num_pending = 0
        self._stamp = ""
        self._next_index = 0

    def write(self, record: bytes) -> None:
        """Appends a record, now or at the next ``flush``; does not raise."""
        if self._num_bytes + len(self._pending) >= self._max_bytes:
            self.close()
        self._pending += frame(record)
        self._num_pending += 1
        if len(self._pending) >= _MAX_PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Passes written records to the operating system; does not raise."""
        num, self._num_pending = self._num_pending, 0
        if not num:
            return
        pending, self._pending = self._pending, bytearray()
        try:
            self._leave_what_was_taken_away()
            if self._file is None:
                self._file = self._open()
                self._num_bytes = 0
                self._make_room(str(self._file.name))
            left = memoryview(pending)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._cut_off()
            self._on_written(num, error)
            return
        self._num_bytes += len(pending)
        self._on_written(num, None)

    def close(self) -> None:
        """Ends the file; the next record begins another. Does not raise."""
        self.flush()
        file, self._file = self._file, None
        self._num_bytes = 0
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _leave_what_was_taken_away(self) -> None:
        """Lets go of a file that somebody deleted or moved: what it got would be lost.

        One ``stat`` for each burst of records, on the writer's thread.
        """
        file = self._file
        if file is None:
            return
        try:
            if os.path.samestat(os.stat(str(file.name)), os.fstat(file.fileno())):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # who cannot look can still write
            return
        log.warning("event=request_log_taken_away path=%s", file.name)
        self._file = None
        with contextlib.suppress(OSError):
            file.close()

    def _cut_off(self) -> None:
        """Cuts off the parts of lost records that came into the file."""
        file = self._file
        if file is None:
            return
        try:
            if self._num_bytes:
                file.truncate(self._num_bytes)
                file.seek(self._num_bytes)
                return
            os.unlink(str(file.name))  # a full disk must not fill up with empty files
        except OSError as error:
            log.debug("event=request_log_not_cut path=%s error=%s", file.name, error)
        self.close()

    def _open(self) -> FileIO:
        os.makedirs(os.path.dirname(self.prefix) or ".", exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._clock.wall_s()))
        # The names that a server gives only increase, even if its clock is set back,
        # because the files with the lowest names are deleted first.
        stamp = max(stamp, self._stamp)
        # Within the same second it does not begin at 0 again: a file of that name may
        # have been deleted already.
        index = self._next_index if stamp == self._stamp else 0
        while True:
            path = f"{self.prefix}-{stamp}-{index}.tfrecord"
            index += 1
            try:
                # Unbuffered, so that it is known what the file contains.
                file = open(path, "xb", buffering=0)  # noqa: SIM115  # ``close`` does
            except FileExistsError:  # of an earlier server
                continue
            self._stamp, self._next_index = stamp, index
            return file

    def _make_room(self, current: str) -> None:
        """Deletes the oldest other files, so that the limits hold when this one is full."""
        if not (self._max_files or self._max_total_bytes):
            return
        others = [path for path in self._files() if path != current]
        sizes = {path: _size_bytes(path) for path in others}
        total_bytes = sum(sizes.values()) + self._max_bytes
        num_files = len(others) + 1
        for path in others:
            too_many = bool(self._max_files) and num_files > self._max_files
            too_large = bool(self._max_total_bytes) and (
                total_bytes > self._max_total_bytes
            )
            if not (too_many or too_large):
                break
            try:
                os.unlink(path)
            except OSError as error:  # writing the records matters more
                log.warning(
                    "event=request_log_not_deleted path=%s error=%s", path, error
                )
                continue
            num_files -= 1
            total_bytes -= sizes[path]
            log.info("event=request_log_deleted path=%s", path)

    def _files(self) -> list[str]:
        """Returns the files of the prefix, oldest first."""
        folder, start = os.path.split(self.prefix)
        found = []
        for name in os.listdir(folder or "."):
            match = _SUFFIX.fullmatch(name.removeprefix(start))
            if name.startswith(start) and match is not None:
                path = os.path.join(folder, name)
                found.append((match[1], int(match[2]), path))
        return [path for _, _, path in sorted(found)]


def _size_bytes(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
