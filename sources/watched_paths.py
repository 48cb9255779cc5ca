"""Which directories the kernel reports changes of, and which have to be polled.

Paths are not watched if they are URLs, if they lie where no events are given, or if
they may not answer, because watching a directory means asking for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from sources.directory_watcher import DirectoryWatcher, WatchdogWatcher
from sources.remote.storage import is_remote, local_path
from sources.storage import FileSystem

log = logging.getLogger(__name__)


class WatchedPaths:
    """The directories that are watched. Confined to its source's turn.

    Nothing is watched until ``start`` has succeeded.

    Args:
        file_system: Where the directories lie.
        watcher: The source of events; None is watchdog, when started. Owned by this
            object.
        watch: None asks the file system which directories give events, True trusts that
            all do, False watches none.
        asks_distant: Whether places that may not answer are looked at on this thread
            like any others, and so may be watched as well.

    """

    def __init__(
        self,
        file_system: FileSystem,
        watcher: DirectoryWatcher | None,
        watch: bool | None,
        *,
        asks_distant: bool,
    ) -> None:
        self._file_system = file_system
        self._watcher = watcher
        self._watch = watch
        self._asks_distant = asks_distant
        self._is_started = False
        self._problem = ""  # why it was not started, if that was tried

    @property
    def is_started(self) -> bool:
        """Whether anything can be watched; safe to read on any thread."""
        return self._is_started

    def start(self, on_changed: Callable[[str], None]) -> None:
        """Begins to report changes, on the watcher's thread, if that is possible.

        To be called again from time to time: other programs may have taken all of the
        system's instances, and give them back.
        """
        if self._is_started:
            return
        if self._watcher is None:
            self._watcher = WatchdogWatcher()
        try:
            self._watcher.start(on_changed)
            self._is_started = True
        except OSError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("event=watcher_failed instead=polling error=%s", error)

    def set(self, paths: Iterable[str]) -> None:
        """Watches exactly these paths from now on, as far as they can be watched."""
        if self._is_started and self._watcher is not None:
            wanted = {local_path(path) for path in set(paths) if self._is_wanted(path)}
            self._watcher.watch(sorted(wanted))

    def ensure(self, path: str) -> bool:
        """Watches one of the paths if possible; returns whether it is watched."""
        if not self._is_started or self._watcher is None or not self._is_wanted(path):
            return False
        return self._watcher.ensure(local_path(path))

    def is_stale(self, path: str) -> bool:
        """Whether a path that was watched has been replaced by another directory."""
        return self._watcher is not None and not self._watcher.is_current(
            local_path(path)
        )

    def close(self) -> None:
        """Stops reporting."""
        if self._watcher is not None:
            self._watcher.close()

    def _is_wanted(self, path: str) -> bool:
        if not self._asks_distant and self._file_system.place(path):
            return False
        if is_remote(path):
            return False
        if self._watch is not None:
            return self._watch
        return self._file_system.gives_events(path)
