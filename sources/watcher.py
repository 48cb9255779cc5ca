"""Tells when something changes in directories, by watchdog. Only a hint to list them.

The directories to watch are those that a listing found, each by itself: nothing is
walked through, and what the kernel does not tell is found by the next listing.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyFD

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[str], None]
"""Takes a watched base path in which something changed; on any thread, quick."""

MAX_FOLDERS: Final = 10_000
"""Most directories that are watched for one base path; with more it is polled."""


class DirectoryWatcher(Protocol):
    """Watches base paths. Its methods are called by one thread at a time.

    Implementors promise: a change in a watched directory is reported, possibly several
    times. A directory that was not watched before is reported once, because something
    may have changed since it was listed. After ``close`` nothing is reported.
    """

    def start(self, on_change: OnChange) -> None:
        """Begins to report.

        Raises:
            OSError: The system cannot watch now; it may be tried again.

        """
        ...

    def watch(self, path: str, folders: Collection[str]) -> bool:
        """Watches a base path, and exactly these directories below it from now on.

        Returns whether all of them are watched.
        """
        ...

    def keep(self, paths: Iterable[str]) -> None:
        """Ends the watches of all other base paths."""
        ...

    def is_current(self, path: str) -> bool:
        """Whether the directory watched for ``path`` is still the one that lies there.

        A link that turns elsewhere raises no event, so this is asked from time to time.
        """
        ...

    def close(self) -> None:
        """Stops reporting and frees everything; idempotent."""
        ...


class InotifyWatcher:
    """A :class:`DirectoryWatcher` over one inotify descriptor and thread of watchdog."""

    def __init__(self) -> None:
        self._inotify: InotifyFD | None = None
        self._mask: Any = 0
        self._on_change: OnChange = _nobody
        self._ids = itertools.count()
        # Guards the fields below; leaf, but for watchdog's own lock.
        self._lock = threading.Lock()
        # The watches of a base path's directories: watchdog's number and our id.
        self._watches: dict[str, dict[str, tuple[Any, Any]]] = {}
        self._identities: dict[str, tuple[int, int]] = {}
        self._refused: set[str] = set()  # base paths whose lack of watches was logged

    def start(self, on_change: OnChange) -> None:
        """Opens inotify, and starts the thread "source-events"."""
        # Imported here, because commands that ask a server need no watchdog.
        from watchdog.observers.inotify_c import InotifyConstants as Event
        from watchdog.observers.inotify_c import InotifyFD

        # Changes of a directory's entries, and of files in it; never that somebody reads
        # them. Attributes matter, too: what could not be read may be readable now.
        self._mask = (
            Event.IN_MODIFY
            | Event.IN_ATTRIB
            | Event.IN_CLOSE_WRITE
            | Event.IN_MOVED_FROM
            | Event.IN_MOVED_TO
            | Event.IN_CREATE
            | Event.IN_DELETE
            | Event.IN_DELETE_SELF
            | Event.IN_MOVE_SELF
            | Event.IN_ONLYDIR
        )
        inotify = InotifyFD()
        inotify.name = "source-events"
        self._on_change = on_change
        self._inotify = inotify
        inotify.start()

    def watch(self, path: str, folders: Collection[str]) -> bool:
        """Watches directories, links followed; some microseconds for each."""
        if self._inotify is None:
            return False
        found: dict[str, tuple[Any, Any]] = {}
        error: OSError | None = None
        with self._lock:
            before = self._watches.get(path, {})
            try:
                status = os.stat(path)
                self._identities[path] = status.st_dev, status.st_ino
                for folder in (path, *folders)[: MAX_FOLDERS + 1]:
                    found[folder] = self._add_locked(path, folder, before.get(folder))
            except OSError as raised:
                error = raised
            self._watches[path] = found
            is_new = any(before.get(each) != found[each] for each in found)
            self._inotify.remove_callbacks(
                [watch for each, watch in before.items() if found.get(each) != watch]
            )
        if is_new:
            self._on_change(path)
        if error is None and len(folders) <= MAX_FOLDERS:
            self._refused.discard(path)
            return True
        if path not in self._refused and not isinstance(error, FileNotFoundError):
            self._refused.add(path)
            why = error or f"it holds more than {MAX_FOLDERS} directories"
            log.warning("event=not_watched path=%s instead=polling why=%s", path, why)
        return False

    def keep(self, paths: Iterable[str]) -> None:
        """Ends the watches of all other base paths."""
        with self._lock:
            for path in self._watches.keys() - set(paths):
                self._identities.pop(path, None)
                self._refused.discard(path)
                watches = self._watches.pop(path)
                if self._inotify is not None:
                    self._inotify.remove_callbacks(list(watches.values()))

    def is_current(self, path: str) -> bool:
        """Compares inodes: one ``stat``, no more."""
        try:
            status = os.stat(path)
        except OSError:
            return False
        return self._identities.get(path) == (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Stops the thread and waits for it."""
        self._on_change = _nobody
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            inotify.stop()
            inotify.join()

    def _add_locked(
        self, path: str, folder: str, before: tuple[Any, Any] | None
    ) -> tuple[Any, Any]:
        """Watches a directory; returns ``before`` if it is watched already as that."""
        assert self._inotify is not None
        events = _Events(self, path)
        own: Any = next(self._ids)
        number = self._inotify.add_callback(
            os.fsencode(folder), self._mask, events, own
        )
        if number == -1:  # watchdog passes over what may not be read
            self._inotify.remove_callbacks([(number, own)])
            raise PermissionError(f"{folder} may not be read")
        if before is not None and before[0] == number:
            self._inotify.remove_callbacks([(number, own)])
            return before
        return number, own

    def tell(self, path: str) -> None:
        """Reports a change in a base path. On watchdog's thread."""
        self._on_change(path)


class _Events:
    """What watchdog calls for one directory of a base path. On its thread."""

    __slots__ = ("_path", "_watcher")

    def __init__(self, watcher: InotifyWatcher, path: str) -> None:
        self._watcher = watcher
        self._path = path

    def on_event(self, event: Any) -> None:
        self._watcher.tell(self._path)

    def on_watch_deleted(self, wd: int) -> None:
        self._watcher.tell(self._path)

    def on_queue_overflow(self) -> None:
        self._watcher.tell(self._path)


def _nobody(path: str) -> None:
    """Stands for whom to tell, before the start and after the end."""
