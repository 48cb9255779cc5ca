"""Tells when something changes in directories, by inotify. Only a hint to list them.

The directories to watch are those that a listing found, each by itself: nothing is
walked through, and what the kernel does not tell is found by the next listing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import struct
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeAlias

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[str], None]
"""Takes the path of something that changed, appeared or disappeared; any thread, quick."""

MAX_FOLDERS: Final = 10_000
"""Most directories that are watched for one base path; with more it is polled."""

_EVENT: Final = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name after it
_BUFFER_BYTES: Final = 1 << 16
# Changes of a directory's entries, and of files in it; never that somebody reads them.
# Attributes matter, too: what could not be read may be readable now.
_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED, _CREATE, _DELETE = 2, 4, 8, 0xC0, 0x100, 0x200
_SELF: Final = 0x400 | 0x800  # the directory itself was removed or moved
_ONLY_FOLDERS: Final = 0x01000000
_MASK: Final = (
    _MODIFY
    | _ATTRIB
    | _CLOSE_WRITE
    | _MOVED
    | _CREATE
    | _DELETE
    | _SELF
    | _ONLY_FOLDERS
)
_OVERFLOW: Final = 0x4000  # the kernel's queue was full: events were lost
_IGNORED: Final = 0x8000  # this watch has ended


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
    """A :class:`DirectoryWatcher` over one inotify instance and one thread."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._on_change: OnChange = lambda _path: None
        self._thread: threading.Thread | None = None
        self._stop_fds = (-1, -1)
        # Guards the fields below; leaf, but for the kernel.
        self._lock = threading.Lock()
        # Which directory the kernel watches under a number, by all names it has.
        self._folders: dict[int, set[str]] = {}
        # The numbers of a base path's directories, and what identifies the base path.
        self._watches: dict[str, dict[str, int]] = {}
        self._identities: dict[str, tuple[int, int]] = {}
        self._refused: set[str] = set()  # base paths whose lack of watches was logged

    def start(self, on_change: OnChange) -> None:
        """Opens inotify, and starts the thread "source-events"."""
        init = getattr(self._libc, "inotify_init1", None)
        if init is None:
            raise OSError("this system has no inotify")
        fd = init(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"inotify: {os.strerror(number)}")
        self._fd, self._on_change = fd, on_change
        self._stop_fds = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(
            target=self._run, name="source-events", daemon=True
        )
        self._thread.start()

    def watch(self, path: str, folders: Collection[str]) -> bool:
        """Watches directories, links followed; a few microseconds for each."""
        if self._fd < 0:
            return False
        found: dict[str, int] = {}
        error: OSError | None = None
        with self._lock:
            before = self._watches.get(path, {})
            try:
                status = os.stat(path)
                self._identities[path] = status.st_dev, status.st_ino
                for folder in (path, *folders)[: MAX_FOLDERS + 1]:
                    found[folder] = self._add_locked(folder)
            except OSError as raised:
                error = raised
            self._watches[path] = found
            new = [each for each in found if before.get(each) != found[each]]
            for folder, number in before.items():
                if found.get(folder) != number:
                    self._remove_locked(folder, number)
        for folder in new:
            self._on_change(folder)
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
                for folder, number in self._watches.pop(path).items():
                    self._remove_locked(folder, number)

    def is_current(self, path: str) -> bool:
        """Compares inodes: one ``stat``, no more."""
        try:
            status = os.stat(path)
        except OSError:
            return False
        return self._identities.get(path) == (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Stops the thread and waits for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            os.close(self._stop_fds[1])
            thread.join()
            os.close(self._stop_fds[0])
            os.close(self._fd)
            self._fd = -1

    def _add_locked(self, folder: str) -> int:
        number: int = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _MASK)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), folder)
        self._folders.setdefault(number, set()).add(folder)
        return number

    def _remove_locked(self, folder: str, number: int) -> None:
        """Ends one name of a directory's watch, and with the last one the watch."""
        if any(each.get(folder) == number for each in self._watches_of_locked(folder)):
            return
        names = self._folders.get(number, set())
        names.discard(folder)
        if not names and self._folders.pop(number, None) is not None:
            self._libc.inotify_rm_watch(self._fd, number)

    def _watches_of_locked(self, folder: str) -> Iterable[dict[str, int]]:
        """Returns the watches that may have a directory: those of paths above it."""
        while folder:
            if folder in self._watches:
                yield self._watches[folder]
            folder = folder.rpartition("/")[0]

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.register(self._stop_fds[0], select.POLLIN | select.POLLHUP)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._stop_fds[0] in ready:
                return
            try:
                events = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                continue
            for path in self._changed(events):
                self._on_change(path)

    def _changed(self, events: bytes) -> set[str]:
        """Returns the paths that events are about."""
        changed: set[str] = set()
        offset = 0
        with self._lock:
            while offset < len(events):
                number, mask, _, num_bytes = _EVENT.unpack_from(events, offset)
                start = offset + _EVENT.size
                offset = start + num_bytes
                name = os.fsdecode(events[start:offset].rstrip(b"\0"))
                if mask & _OVERFLOW:
                    changed.update(self._watches)
                elif mask & _IGNORED:
                    changed |= self._folders.pop(number, set())
                else:
                    for folder in self._folders.get(number, ()):
                        changed.add(f"{folder}/{name}" if name else folder)
        return changed
