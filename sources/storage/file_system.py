"""What reads the storage of versions, and threads for what may not answer."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from sources.storage.version_contents import Contents, VersionInventory, is_directory
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.executor import Call, ThreadExecutor


class FileSystem(Protocol):
    """Reads directories, local or remote. Thread-safe.

    Implementors promise: every failure is an OSError, FileNotFoundError if the
    path is not there, NotADirectoryError if it is no directory; nothing is cached
    between calls; paths are joined with ``/``.
    """

    def list_directories(self, path: str) -> Sequence[str]:
        """Returns the names of the directories in ``path``, links followed."""
        ...

    def broken_links(self, path: str) -> Sequence[str]:
        """Returns the names of the links in ``path`` that lead to nothing."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether a file lies at ``path``; False when it is not there."""
        ...

    def contents(self, path: str) -> Contents:
        """Returns what lies in the directory ``path``, sub-folders included."""
        ...

    def place(self, path: str) -> str:
        """Returns the store or network mount with which ``path`` may stop answering.

        It never blocks and never raises, even while the place does not answer. It is
        empty for what always answers, and of which the kernel reports every change; only
        paths with a place can hang.
        """
        ...


def why(error: OSError) -> str:
    """Returns the system's words for the error, without the path they may carry."""
    return error.strerror or str(error) or type(error).__name__


# A change made on another machine raises no inotify event here (NFS and its kin),
# or may raise none (FUSE and pass-through mounts of virtual machines).
SILENT_FILE_SYSTEMS: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre",
        "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs",
        "vmhgfs",
    }
)  # fmt: skip

_MOUNTS_KEPT_S: Final = 1.0
# The kernel's limit, too: links that form a circle lead nowhere.
_MAX_NUM_LINKS: Final = 40
_ESCAPE = re.compile(r"\\([0-7]{3})")


def read_mountinfo() -> str:
    """Returns the kernel's list of this process's mounts, empty without one."""
    try:
        return Path("/proc/self/mountinfo").read_text(
            encoding="utf-8", errors="surrogateescape"
        )
    except OSError:
        return ""


class LocalFileSystem:
    """The machine's own files. Thread-safe.

    Args:
        mountinfo: Returns what ``/proc/self/mountinfo`` contains; asked again when a
            second has passed, because a thousand base paths ask.
        now: The time, in seconds.

    """

    def __init__(
        self,
        mountinfo: Callable[[], str] = read_mountinfo,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_mountinfo = mountinfo
        self._now = now
        self._mounts_at_s: tuple[str, float] | None = None  # replaced as a whole

    def list_directories(self, path: str) -> Sequence[str]:
        """Returns the directories in ``path``, links to directories included.

        A link that leads in a circle, or to where this user may not look, is left out.
        """
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if is_directory(entry)]

    def broken_links(self, path: str) -> Sequence[str]:
        """Returns the names of the links in ``path`` that lead to nothing."""
        with os.scandir(path) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_symlink() and not os.path.exists(entry.path)
            ]

    def is_file(self, path: str) -> bool:
        """Whether a regular file, or a link to one, lies at ``path``."""
        return os.path.isfile(path)

    def contents(self, path: str) -> Contents:
        """Returns what lies in a version directory; see :class:`VersionInventory`.

        Raises:
            OSError: It cannot be read, or holds far more than a version.

        """
        return VersionInventory(path, lambda each: not self.place(each)).take()

    def _mountinfo(self) -> str:
        known, now_s = self._mounts_at_s, self._now()
        if known is None or now_s >= known[1] + _MOUNTS_KEPT_S:
            known = self._mounts_at_s = self._read_mountinfo(), now_s
        return known[0]

    def place(self, path: str) -> str:
        """Returns the mount point of a network file system, empty for a disk."""
        return silent_mount(self._mountinfo(), path)


def silent_mount(mountinfo: str, path: str) -> str:
    """Returns the mount point that ``path`` leads to if that mount gives no events.

    It returns an empty string if the mount gives events. Links are followed up to that
    mount, but nothing on it is touched, because a dead mount does not answer.

    Args:
        mountinfo: Contents of ``/proc/self/mountinfo``. Of several mounts at one point,
            the last one hides the others.
        path: Absolute.

    """
    if not any(is_silent for _, is_silent in _mounts(mountinfo)):
        return ""  # wherever links lead
    at, left = "", path
    for _ in range(_MAX_NUM_LINKS):
        point, is_silent = _mount_of(mountinfo, f"{at}/{left}")
        if is_silent:
            return point
        link = _first_link(at, left)
        if link is None:
            return ""
        at, left = link
    return ""


def _first_link(at: str, left: str) -> tuple[str, str] | None:
    """Follows the first link on the way; returns where it leads and what is left."""
    names = deque(left.split("/"))
    while names:
        name = names.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            at = at.rpartition("/")[0]
            continue
        below = f"{at}/{name}"
        try:
            target = os.readlink(below)
        except (OSError, ValueError):  # no link, nothing at all, or no path
            at = below
            continue
        rest = "/".join([target, *names])
        return ("" if target.startswith("/") else at), rest
    return None


def _mount_of(mountinfo: str, path: str) -> tuple[str, bool]:
    """Returns the mount point above a path, without following links; if it is silent."""
    path = os.path.normpath(path).replace("//", "/")
    for point, is_silent in _mounts(mountinfo):
        if path == point or path.startswith(point.rstrip("/") + "/"):
            return point, is_silent
    return "", False


@functools.lru_cache(maxsize=1)  # it rarely changes, and a thousand base paths ask
def _mounts(mountinfo: str) -> list[tuple[str, bool]]:
    """Returns mount points, and if they are silent; the first that fits a path is right."""
    mounts = []
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if dash and len(fields) >= 5:
            point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
            kind = right.split(" ", 1)[0]
            is_silent = kind in SILENT_FILE_SYSTEMS or kind.startswith("fuse")
            mounts.append((point, is_silent))
    mounts.reverse()  # of several mounts at one point the last one counts
    return sorted(mounts, key=lambda mount: -len(mount[0]))


PATIENCE_S: Final = 2.0
"""How long a call may take before others stop waiting for it."""
_NUM_THREADS: Final = 4  # at the same time for one place, besides those of late calls


class StorageThreads:
    """Runs calls of different places beside each other. Thread-safe, never blocks.

    Whoever submits also calls ``relieve``, at the times that it returns.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        # Guards the fields below; leaf, but for those of the executors.
        self._lock = threading.Lock()
        self._executors: dict[str, ThreadExecutor] = {}
        self._is_closed = False

    def submit(
        self, place: str, fn: Callable[[], object], patience_s: float = PATIENCE_S
    ) -> Call:
        """Runs ``fn`` on a thread of ``place``; what it raises is logged.

        Raises:
            RuntimeError: They are closed; ``fn`` will not run.

        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the storage threads are closed")
            executor = self._executors.get(place)
            if executor is None:
                executor = ThreadExecutor(_NUM_THREADS, "storage", self._clock)
                self._executors[place] = executor
        return executor.submit(fn, patience_s)

    def relieve(self) -> float | None:
        """Notes which calls are late, and lets others run in their place.

        Returns:
            When, by the clock, another call may be late; None if none can be.

        """
        with self._lock:
            executors = list(self._executors.values())
        times_s = [each.relieve() for each in executors]
        return min((each for each in times_s if each is not None), default=None)

    def close(self) -> None:
        """Takes no more calls, and waits for none."""
        with self._lock:
            self._is_closed = True
            executors = list(self._executors.values())
        for each in executors:
            each.close(self._clock.now())


# Matches fsspec's chains (simplecache::s3://) as well. urlsplit is not used, because it
# raises for "s3://[".
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*)://")


def is_remote(path: str) -> bool:
    """Whether ``path`` is a URL that is not simply a local file's."""
    found = _SCHEME.match(path)
    return found is not None and found[1].lower() not in ("file", "local")


def local_path(path: str) -> str:
    """Returns the path of a ``file://`` URL; any other path as it is."""
    for prefix in ("file://", "local://"):
        if path.startswith(prefix):
            return path.removeprefix(prefix)
    return path


class AnyFileSystem:
    """Local paths and URLs side by side. Thread-safe."""

    def __init__(self, remote: FileSystem, local: FileSystem | None = None) -> None:
        self._remote = remote
        self._local = local or LocalFileSystem()

    def list_directories(self, path: str) -> Sequence[str]:
        """Returns the directories in ``path``."""
        return self._for(path).list_directories(local_path(path))

    def broken_links(self, path: str) -> Sequence[str]:
        """Returns the links in ``path`` that lead to nothing."""
        return self._for(path).broken_links(local_path(path))

    def is_file(self, path: str) -> bool:
        """Whether a file lies at ``path``."""
        return self._for(path).is_file(local_path(path))

    def contents(self, path: str) -> Contents:
        """Returns what lies in ``path``."""
        return self._for(path).contents(local_path(path))

    def place(self, path: str) -> str:
        """Returns the store or mount of ``path`` that may stop answering."""
        return self._for(path).place(local_path(path))

    def _for(self, path: str) -> FileSystem:
        return self._remote if is_remote(path) else self._local
