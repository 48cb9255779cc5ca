"""A file system in memory, with a clock, and with faults on request."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from sources.storage.version_contents import Contents
from tfs.core.clock import Clock


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    written_s: float


class FakeFileSystem:
    """A :class:`sources.storage.file_system.FileSystem` for tests. Thread-safe.

    Attributes:
        num_calls: Calls of the protocol's methods so far, except ``place``.
        places: What ``place`` returns, by the beginning of a path; "" for any other
            path.

    """

    def __init__(self, clock: Clock) -> None:
        self.num_calls = 0
        self.places: dict[str, str] = {}
        self._clock = clock
        self._lock = threading.Lock()  # guards every field; leaf
        self._files: dict[str, _File] = {}
        self._folders: dict[str, float] = {"/": 0.0}
        self._failing_call = 0
        self._broken: dict[str, Exception] = {}
        self._broken_links: set[str] = set()

    # -- what tests do -----------------------------------------------------------

    def write(self, path: str, data: bytes = b"") -> None:
        """Writes a file, making the folders above it."""
        with self._lock:
            self._make_folder(path.rpartition("/")[0])
            self._files[path] = _File(data, self._clock.wall_s())

    def make_folder(self, path: str) -> None:
        """Makes a folder and those above it."""
        with self._lock:
            self._make_folder(path)

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with all it holds."""
        with self._lock:
            below = path + "/"
            self._files = {
                p: f
                for p, f in self._files.items()
                if p != path and not p.startswith(below)
            }
            self._folders = {
                p: s
                for p, s in self._folders.items()
                if p != path and not p.startswith(below)
            }
            self._touch_parent(path)

    def rename(self, old: str, new: str) -> None:
        """Moves a file or a folder, as one step."""
        with self._lock:
            self._make_folder(new.rpartition("/")[0])
            self._files = {_moved(p, old, new): f for p, f in self._files.items()}
            self._folders = {_moved(p, old, new): s for p, s in self._folders.items()}
            self._touch_parent(old)
            self._touch_parent(new)

    def fail_call(self, index: int) -> None:
        """Makes the ``index``-th protocol call from now, counted from 1, fail."""
        with self._lock:
            self._failing_call = self.num_calls + index

    def break_path(self, path: str, error: Exception | None) -> None:
        """Makes every call for ``path``, or for one below it, fail; None ends that."""
        with self._lock:
            if error is None:
                self._broken.pop(path, None)
            else:
                self._broken[path] = error

    def break_link(self, path: str) -> None:
        """Makes a link that leads to nothing; ``make_folder`` gives it an end."""
        with self._lock:
            self._broken_links.add(path)
            self._touch_parent(path)

    # -- the protocol --------------------------------------------------------------

    def list_directories(self, path: str) -> Sequence[str]:
        """Returns the folders in ``path``."""
        with self._lock:
            self._enter(path)
            self._check_folder(path)
            below = path.rstrip("/") + "/"
            return [
                p.removeprefix(below)
                for p in self._folders
                if p.startswith(below) and "/" not in p.removeprefix(below) and p != "/"
            ]

    def broken_links(self, path: str) -> Sequence[str]:
        """Returns the links in ``path`` that :meth:`break_link` made."""
        with self._lock:
            below = path.rstrip("/") + "/"
            return [
                p.removeprefix(below) for p in self._broken_links if p.startswith(below)
            ]

    def is_file(self, path: str) -> bool:
        """Whether a file lies at ``path``."""
        with self._lock:
            self._enter(path)
            return path in self._files

    def contents(self, path: str) -> Contents:
        """Returns a folder's names, its fingerprint and the time of its last change."""
        with self._lock:
            self._enter(path)
            self._check_folder(path)
            below = path + "/"
            files = {p: f for p, f in self._files.items() if p.startswith(below)}
            folders = {
                p: s
                for p, s in self._folders.items()
                if p == path or p.startswith(below)
            }
            digest = hashlib.sha256(
                repr(
                    sorted((p, f.data, f.written_s) for p, f in files.items())
                ).encode()
            )
            names = {
                p.removeprefix(below).partition("/")[0]
                for p in [*files, *folders]
                if p != path
            }
            newest_s = max([*(f.written_s for f in files.values()), *folders.values()])
            return Contents(
                frozenset(names),
                digest.hexdigest()[:32],
                newest_s,
            )

    def place(self, path: str) -> str:
        """Returns what the test has set for such paths."""
        found = (self.places[start] for start in self.places if path.startswith(start))
        return next(found, "")

    def _enter(self, path: str) -> None:
        self.num_calls += 1
        if self.num_calls == self._failing_call:
            raise OSError(5, "Input/output error", path)
        for broken, error in self._broken.items():
            if path == broken or path.startswith(broken + "/"):
                raise error

    def _check_folder(self, path: str) -> None:
        if path in self._files:
            raise NotADirectoryError(20, "Not a directory", path)
        if path.rstrip("/") not in self._folders and path != "/":
            raise FileNotFoundError(2, "No such file or directory", path)

    def _make_folder(self, path: str) -> None:
        self._broken_links.discard(path)
        while path and path not in self._folders:
            self._folders[path] = self._clock.wall_s()
            self._touch_parent(path)
            path = path.rpartition("/")[0]

    def _touch_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent in self._folders:
            self._folders[parent] = self._clock.wall_s()


def _moved(path: str, old: str, new: str) -> str:
    if path == old or path.startswith(old + "/"):
        return new + path.removeprefix(old)
    return path
