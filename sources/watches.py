"""Which base paths are watched, and which have to be polled.

A base path is not watched if it is a URL, if it lies where no events are given, or if it
may not answer, because watching a directory means asking for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from sources.agenda import directory_of
from sources.remote.storage import is_remote
from sources.storage.file_system import FileSystem
from sources.watcher import DirectoryWatcher, InotifyWatcher, OnChange

log = logging.getLogger(__name__)


class Watches:
    """The base paths that are watched. Confined to its source's turn.

    Nothing is watched until ``start`` has succeeded.

    Args:
        watcher: The source of events; None is inotify. Owned by this object.
        file_system: Where the base paths lie.
        on_change: Called with the base path in which something changed, on the watcher's
            thread.
        watch: Whether anything is watched.
        asks_distant: Whether places that may not answer are listed on this thread
            like any others, and so may be watched as well.

    """

    def __init__(
        self,
        watcher: DirectoryWatcher | None,
        file_system: FileSystem,
        on_change: OnChange,
        watch: bool,
        *,
        asks_distant: bool,
    ) -> None:
        self._watcher = watcher or InotifyWatcher()
        self._file_system = file_system
        self._on_change = on_change
        self._watch = watch
        self._asks_distant = asks_distant
        self._is_started = False
        self._problem = ""  # why it was not started, if that was tried

    def start(self) -> bool:
        """Begins to report, unless that is so already; returns whether it began now.

        To be called from time to time: other programs may have taken all that the system
        has to give, and give it back.
        """
        if self._is_started:
            return False
        try:
            self._watcher.start(self._on_change)
        except OSError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("event=watcher_failed instead=polling error=%s", error)
            return False
        self._is_started = True
        return True

    def add(self, path: str, folders: Sequence[str]) -> bool:
        """Watches a base path and directories in it; returns whether that is so now.

        What was not watched before is reported as changed.
        """
        if not self._is_started or not self._may_watch(path):
            return False
        return self._watcher.watch(directory_of(path), folders)

    def keep(self, paths: Iterable[str]) -> None:
        """Ends the watches of all other base paths."""
        self._watcher.keep([directory_of(path) for path in paths])

    def is_current(self, path: str) -> bool:
        """Whether the directory watched for a base path still lies there."""
        return self._watcher.is_current(directory_of(path))

    def close(self) -> None:
        """Stops reporting."""
        self._watcher.close()

    def _may_watch(self, path: str) -> bool:
        if not self._watch or is_remote(path):
            return False
        if not self._asks_distant and self._file_system.place(path):
            return False
        return self._file_system.gives_events(path)
