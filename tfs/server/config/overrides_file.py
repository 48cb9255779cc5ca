"""Keeps the overrides in the state directory, in a file that every change replaces."""

from __future__ import annotations

import logging
import os
import tempfile

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.replaced_file import replace_file
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


class OverridesFile:
    """``overrides.pbtxt`` of one state directory. Confined to one thread at a time.

    If the file cannot be read, the server starts without overrides and says so. The
    file stays where it is, so that every start says it again. When an override is
    written, the file is moved aside to ``overrides.pbtxt.unreadable``.

    Args:
        state_dir: The directory; "" keeps overrides in memory only.

    Attributes:
        path: The file; "" for none.
        problem: Why the file could not be read; "" if it could.
        obstacle: Why nothing could be written the last time; "" if it could.

    """

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self.path = os.path.join(state_dir, _FILE_NAME) if state_dir else ""
        self.problem = ""
        self.obstacle = ""

    def read(self) -> dict[str, Override]:
        """Returns the overrides in the file; none if there is no file or it is damaged.

        Does not raise; see ``problem`` and ``obstacle``.
        """
        if not self.path:
            return {}
        self.obstacle = self._find_obstacle()
        if self.obstacle:
            log.warning("event=state_dir_unwritable problem=%s", self.obstacle)
        try:
            os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError:
            pass  # reading the file will report the error
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

    def _find_obstacle(self) -> str:
        try:
            os.makedirs(self._state_dir, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._state_dir, buffering=0) as file:
                # An empty file can be made even if the disk is full.
                file.write(bytes(_PROBE_BYTES))
        except OSError as error:
            return self._cannot_keep(error)
        return ""

    def _cannot_keep(self, error: OSError) -> str:
        return f"nothing can be kept in {self._state_dir}: {error.strerror}"

    def _sync_directory(self) -> None:
        fd = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
