"""Reports changes below directories, through watchdog (inotify on Linux)."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

import watchdog.events
from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from sources.watch_limit import WatchLimit

log = logging.getLogger(__name__)

# Every watch costs watchdog a thread. If a folder contains this many base paths or
# more, the folder is watched instead of each of them.
SHARED_FOLDER_FROM: Final = 8
MAX_WATCHES: Final = 64
# Watchdog first sets a watch for each directory below a root. For "/", which a typing
# error can name, that took minutes and all memory. A root with more directories than
# this is polled.
MAX_DIRECTORIES: Final = 50_000

# watchdog holds back the first half of a rename for half a second, and with it every
# later event, to report both halves as one. Publishing a version *is* a rename, and
# pairs are not needed here. The kernel gives both halves at once, so this delay is
# plenty.
PAIRING_S: Final = 0.02
_PAIRING_CLASSES: Final = (
    ("watchdog.observers.inotify_move_event_grouper", "InotifyMoveEventGrouper"),
    ("watchdog.observers.inotify_buffer", "InotifyBuffer"),  # watchdog 6
)

# watchdog 7 reports changes of times and permissions apart from modifications; version
# 6 did not. Both matter: a file that was touched is loaded anew, and one that could not
# be read may be readable now.
_ATTRIBUTES: Final = [
    found
    for name in ("DirAttribEvent", "FileAttribEvent")
    if (found := getattr(watchdog.events, name, None)) is not None
]

# Events of opening a file are left out, because reading a model must not cause a look.
_EVENTS: Final[list[type[FileSystemEvent]]] = [
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    *_ATTRIBUTES,
]

_Identity: TypeAlias = tuple[int, int]

OnChange = Callable[[str], None]
"""Takes the path of something that changed, appeared or disappeared; called on any
thread, quick."""


class DirectoryWatcher(Protocol):
    """Watches directories and all below them. Confined to one caller at a time.

    Implementors promise: a change below a watched directory is reported, possibly
    several times, possibly naming only a folder above it; after ``close`` nothing is
    reported. Events that a full kernel queue drops are lost, so users have to look from
    time to time as well.
    """

    def start(self, on_change: OnChange) -> None:
        """Begins to report; called once, before the other methods.

        Raises:
            OSError: The system has no watches left; nothing will be reported.

        """
        ...

    def watch(self, paths: Iterable[str]) -> None:
        """Watches exactly ``paths`` from now on, as far as they exist."""
        ...

    def ensure(self, path: str) -> bool:
        """Returns whether ``path``, one of those to watch, is watched now.

        A directory that has appeared since, or replaced another of the same name, is
        watched from here on. Returns False if it does not exist or a limit is reached,
        even if only for a directory below it.
        """
        ...

    def is_current(self, path: str) -> bool:
        """Whether the directory watched for ``path`` is still the one that lies there.

        Neither moving a watched directory away nor redirecting a link to it raises an
        event below it, so this has to be asked from time to time. Also returns False if
        not everything below it is watched.
        """
        ...

    def close(self) -> None:
        """Stops reporting and frees everything; idempotent."""
        ...


class WatchdogWatcher:
    """A :class:`DirectoryWatcher` on watchdog's observer for this system.

    Links below a watched directory are not followed; a change behind one is found by
    the next look. If the system runs out of watches, a tree may be watched in part. It
    does not count as watched then, until there are enough watches.
    """

    def __init__(self, limit: WatchLimit | None = None) -> None:
        self._limit = limit or WatchLimit()
        self._observer: BaseObserver | None = None
        self._handler: _Handler | None = None
        self._root_by_path: dict[str, str] = {}
        self._watches: dict[str, tuple[ObservedWatch, _Identity]] = {}
        # Roots that are polled, because they are too large.
        self._too_large: dict[str, _Identity] = {}
        self._partial: set[str] = (
            set()
        )  # roots some of whose directories are not watched
        self._refused: set[str] = set()  # roots whose lack of watches was logged

    def start(self, on_change: OnChange) -> None:
        """Starts watchdog's threads."""
        _shorten_pairing()
        observer = Observer()
        observer.daemon = True
        observer.name = "source-observer"
        observer.start()
        self._handler = _Handler(on_change)
        self._observer = observer

    def watch(self, paths: Iterable[str]) -> None:
        """Watches ``paths``, but those with many siblings through their folder."""
        self._root_by_path = choose_roots(paths, os.path.islink)
        roots = list(dict.fromkeys(self._root_by_path.values()))
        for root in self._watches.keys() - set(roots):
            self._drop(root)
        for root in roots:
            self._ensure_root(root)

    def ensure(self, path: str) -> bool:
        """Watches ``path`` or its folder if that is not done already."""
        root = self._root_by_path.get(path)
        return root is not None and self._ensure_root(root)

    def is_current(self, path: str) -> bool:
        """Compares inodes: one ``stat``, no more."""
        root = self._root_by_path.get(path)
        if root is None or root in self._partial:
            return False
        return self._is_watched(root, _identity(root))

    def close(self) -> None:
        """Stops watchdog's threads and waits for them."""
        observer, self._observer = self._observer, None
        self._watches.clear()
        self._limit.close()
        if observer is not None:
            observer.stop()
            observer.join()

    def _is_watched(self, root: str, identity: _Identity | None) -> bool:
        """Whether a root is watched, and the watched directory is the one there now."""
        watched, handler = self._watches.get(root), self._handler
        if watched is None or handler is None or watched[1] != identity:
            return False
        # A new directory may get the inode of the one that was removed, and then looks
        # the same. But the watch ended with the first one.
        return not handler.is_gone(watched[0].path)

    def _ensure_root(self, root: str) -> bool:
        identity = _identity(root)
        if self._is_watched(root, identity):
            if self._limit.is_reached(self._watches[root][0].path):
                return self._refuse(root, "no inotify watches left")
            if root not in self._partial:
                return True
        real = os.path.realpath(root)
        if root in self._watches:
            self._drop(root, real)  # the kernel's watch follows the old directory
        observer, handler = self._observer, self._handler
        if identity is None or observer is None or handler is None:
            return False
        if len(self._watches) >= MAX_WATCHES:
            return False
        if self._too_large.get(root) == identity:
            return False
        if self._limit.is_reached(real):
            return self._refuse(root, "no inotify watches left")
        if holds_more_directories(real, MAX_DIRECTORIES):
            log.warning(
                "event=not_watched path=%s instead=polling directories=%d+",
                root,
                MAX_DIRECTORIES,
            )
            self._too_large[root] = identity
            return False
        handler.name_root(real, root)
        try:
            scheduled = observer.schedule(
                handler, real, recursive=True, event_filter=_EVENTS
            )
        except OSError as error:
            # There are no inotify watches left, or the directory is gone again, so it
            # is polled.
            handler.forget_root(real, root)
            return self._refuse(root, str(error))
        self._watches[root] = (scheduled, identity)
        self._partial.discard(root)
        if self._limit.is_reached(real):
            return self._refuse(root, "no inotify watches left")
        self._refused.discard(root)
        return True

    def _refuse(self, root: str, error: str) -> bool:
        """Notes that a root is not watched, or only in part; returns False."""
        if root in self._watches:
            self._partial.add(root)
        if root not in self._refused:
            self._refused.add(root)
            log.warning(
                "event=watch_failed path=%s instead=polling error=%s", root, error
            )
        return False

    def _drop(self, root: str, real: str = "") -> None:
        """Ends a root's watch; ``real`` is where it leads now, if watched again."""
        watch, _ = self._watches.pop(root)
        self._partial.discard(root)
        dropped = [root]
        if watch.path == real:
            # Another directory has its name by now. The watch is of no use any more,
            # and would prevent a new one for that name.
            dropped += [r for r, (other, _) in self._watches.items() if other == watch]
            for other_root in dropped[1:]:
                del self._watches[other_root]
                self._partial.discard(other_root)
        if self._handler is not None:
            for each in dropped:
                self._handler.forget_root(watch.path, each)
        is_shared = any(other == watch for other, _ in self._watches.values())
        if self._observer is not None and not is_shared:
            # Watchdog has already given the watch up.
            with contextlib.suppress(KeyError):
                self._observer.unschedule(watch)


def holds_more_directories(path: str, limit: int) -> bool:
    """Whether more than ``limit`` directories lie below ``path``; looks at no more.

    Links are not followed; what cannot be read counts as empty.
    """
    num, pending = 0, [path]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    num += 1
                    if num > limit:
                        return True
    return False


def choose_roots(
    paths: Iterable[str], is_link: Callable[[str], bool] = lambda _: False
) -> dict[str, str]:
    """Returns which directory to watch for each path: itself or its folder. Pure.

    A path right below another one is watched through that; a link is always
    watched itself, because watches do not follow links below.
    """
    kept = list(dict.fromkeys(paths))
    plain = [path for path in kept if not is_link(path)]
    num_siblings = Counter(map(os.path.dirname, plain))
    roots = {path: path for path in kept}
    for path in sorted(plain):
        folder = os.path.dirname(path)
        if folder == "/":
            continue
        if folder in roots or num_siblings[folder] >= SHARED_FOLDER_FROM:
            roots[path] = roots.get(folder, folder)
    return roots


class _Handler(FileSystemEventHandler):
    """Passes changed paths on, by each name under which they are known. Thread-safe.

    A link and the directory that it leads to may both be base paths, and so may two
    such links.
    """

    def __init__(self, on_change: OnChange) -> None:
        self._on_change = on_change
        # Guards the writing of both below; leaf.
        self._lock = threading.Lock()
        self._names: dict[str, tuple[str, ...]] = {}
        # Of these roots, those that were removed.
        self._gone: frozenset[str] = frozenset()

    def name_root(self, real: str, name: str) -> None:
        """Adds a name of a directory that is, or is about to be, watched."""
        with self._lock:
            names = self._names.get(real, ())
            if name not in names:
                self._names = {**self._names, real: (*names, name)}

    def forget_root(self, real: str, name: str) -> None:
        with self._lock:
            names = tuple(n for n in self._names.get(real, ()) if n != name)
            others = {r: each for r, each in self._names.items() if r != real}
            self._names = {**others, real: names} if names else others
            self._gone &= self._names.keys()

    def is_gone(self, real: str) -> bool:
        """Whether the directory watched under that name was removed."""
        return real in self._gone

    def on_any_event(self, event: FileSystemEvent) -> None:
        for path in (event.src_path, event.dest_path):
            if path:
                decoded = os.fsdecode(path)
                if isinstance(event, DirDeletedEvent) and decoded in self._names:
                    with self._lock:
                        self._gone |= {decoded} & self._names.keys()
                for name in self._all_names(decoded):
                    self._on_change(name)

    def _all_names(self, path: str) -> list[str]:
        found = [path]
        for real, names in self._names.items():
            if path == real or path.startswith(real + "/"):
                found += [n + path[len(real) :] for n in names if n != real]
        return found


def _shorten_pairing() -> None:
    for module, name in _PAIRING_CLASSES:
        with contextlib.suppress(ImportError, AttributeError):
            getattr(importlib.import_module(module), name).delay = PAIRING_S


def _identity(path: str) -> _Identity | None:
    """Returns what tells a directory from others; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino  # every file system has an inode 2 at its root
