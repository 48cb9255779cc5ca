"""Keeps the overrides in the state directory, in a file that every change replaces."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import tempfile
from pathlib import Path
from typing import Final

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.replaced_file import replace_file
from tfs.core.system.own_descriptors import OWN
from tfs.server.config.config_file import read_config_file
from tfs.server.config.overrides import (
    Override,
    Overrides,
    overrides_text,
    read_overrides,
)

log = logging.getLogger(__name__)

_FILE_NAME = "overrides.pbtxt"
_PROBE_BYTES = 4096
_HELD: Final = frozenset({errno.EACCES, errno.EAGAIN})


class OverridesFile:
    """``overrides.pbtxt`` of one state directory. Confined to one thread at a time.

    If the file cannot be read, the server starts without overrides and says so. The
    file stays where it is, so that every start says it again. When an override is
    written, the file is moved aside to ``overrides.pbtxt.unreadable``.

    If another server keeps its overrides in the same directory, they are read, but
    nothing is written while that server runs. Nor is anything written afterwards if
    that server has changed the file meanwhile.

    Args:
        state_dir: The directory; "" keeps overrides in memory only.

    Attributes:
        problem: Why the file could not be read; "" if it could.
        obstacle: Why nothing could be written the last time; "" if it could.

    """

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._fd = -1  # of the directory, while this server has its lock
        # The file's contents when it was read; None if there was none.
        self._seen: bytes | None = None
        self.problem = ""
        self.obstacle = ""

    @property
    def path(self) -> str:
        """Where the overrides are kept; "" if nowhere."""
        return os.path.join(self._state_dir, _FILE_NAME) if self._state_dir else ""

    def read(self) -> dict[str, Override]:
        """Returns the overrides in the file; none if there is no file or it is damaged.

        Does not raise; see ``problem`` and ``obstacle``.
        """
        self.obstacle = self._find_obstacle()
        if self.obstacle:
            log.warning("event=state_dir_unwritable problem=%s", self.obstacle)
        if not self.path:
            return {}
        try:
            os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError:
            pass  # reading the file will report the error
        self._seen = self._content()
        try:
            return read_overrides(read_config_file(self.path), self.path)
        except ServingError as error:
            self.problem = (
                f"the overrides in {self.path} cannot be used, none is in force: "
                f"{error.message}; repair the file and restart, or make them anew (the "
                "file then moves aside)"
            )
            log.error("event=overrides_unreadable problem=%s", self.problem)
            return {}

    def write(self, overrides: Overrides) -> None:
        """Replaces the file; after a crash it is either the old or the new one, complete.

        Raises:
            FailedPrecondition: It cannot be written; the old one is still there.

        """
        if not self.path:
            return
        try:
            os.makedirs(self._state_dir, exist_ok=True)
            self._claim()
            replace_file(
                self.path,
                overrides_text(overrides),
                is_durable=True,
                old_path=f"{self.path}.unreadable" if self.problem else "",
            )
            self._sync_directory()
        except OSError as error:
            self.obstacle = self._cannot_keep(error)
            raise FailedPrecondition(
                f"cannot keep overrides in {self.path}: {error.strerror}; nothing "
                "was changed: mend that, or have it in the configuration (tfs reload), "
                "for which nothing is written"
            ) from error
        self.problem = self.obstacle = ""

    def close(self) -> None:
        """Lets another server keep its overrides there; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            OWN.remove(fd)
            os.close(fd)

    def _claim(self) -> None:
        """Makes sure that the file contains what this server read or wrote.

        Raises:
            FailedPrecondition: Another server uses it, or has changed it.

        """
        if self._fd >= 0:
            return
        self.obstacle = self._take_lock()
        if not self.obstacle and self._content() != self._seen:
            self.close()  # so that the next try fails in the same way
            self.obstacle = (
                f"{self.path} was changed by another server since this one read it; "
                "restart this one to take that over"
            )
        if self.obstacle:
            raise FailedPrecondition(f"{self.obstacle}; nothing was changed")

    def _take_lock(self) -> str:
        """Locks the directory; returns why another server keeps it, "" if none does.

        Two servers that share one would replace each other's overrides. The directory
        itself is locked, so that no lock file is left in it, and the kernel frees the lock
        however a server ends. If that cannot be told, no server is kept away.
        """
        try:
            fd = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # writing there will report the error
            return ""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno not in _HELD:
                return ""
            return (
                f"another server keeps its overrides in {self._state_dir}, so that this "
                "one cannot; give each a --state_dir of its own"
            )
        self._fd = fd
        OWN.add(fd)
        return ""

    def _content(self) -> bytes | None:
        try:
            return Path(self.path).read_bytes()
        except OSError:
            return None

    def _find_obstacle(self) -> str:
        if not self.path:
            return ""
        try:
            os.makedirs(self._state_dir, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._state_dir, buffering=0) as file:
                # An empty file can be made even if the disk is full.
                file.write(bytes(_PROBE_BYTES))
        except OSError as error:
            return self._cannot_keep(error)
        return "" if self._fd >= 0 else self._take_lock()

    def _cannot_keep(self, error: OSError) -> str:
        return f"nothing can be kept in {self._state_dir}: {error.strerror}"

    def _sync_directory(self) -> None:
        fd = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
