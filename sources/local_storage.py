"""Directories of this machine, and whether the kernel reports their changes."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from sources.storage import Contents
from tfs.core.manifest import MANIFEST
from tfs.core.version_directory import MAX_DESCRIPTION_BYTES

# A change made on another machine raises no inotify event here (NFS and its kin),
# or may raise none (FUSE and pass-through mounts of virtual machines).
SILENT_FILE_SYSTEMS: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre",
        "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs",
        "vmhgfs",
    }
)  # fmt: skip

IGNORED_FOLDERS: Final = frozenset({"__pycache__"})
MAX_ENTRIES: Final = 100_000
"""Most entries of a version directory. A directory with more is no version, whatever
its name; it may be a folder of a data set by year."""

_BY_EFFECTIVE_IDS: Final = os.access in os.supports_effective_ids
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
            return [entry.name for entry in entries if _is_directory(entry)]

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
        """Returns names, fingerprint and time of the last change.

        A directory that replaces another one has another fingerprint, even if its files
        are equal. The time is the inode's change time if that is later than the
        modification time, because ``cp -p`` and ``rsync -t`` set the latter back.

        Raises:
            OSError: It cannot be read, or has more than :data:`MAX_ENTRIES` files and
                folders, which no version has.

        """
        lines: list[str] = []
        with contextlib.suppress(OSError):  # no link
            lines.append(f" -> {os.readlink(path)}")
        is_linked = bool(lines)
        top = frozenset(os.listdir(path))
        folder_stat = os.stat(path)
        newest_s = _changed_s(folder_stat)
        # Network file systems may renumber inodes at any time, and make times up.
        is_disk = self.gives_events(path)
        # Who unpacks an archive with fixed times leaves files of the same size and age.
        # A manifest says by digests what they are; without one the change time is all
        # that is left. Only then, because `chmod -R` and hard links change it, too.
        counts_changes = is_disk and MANIFEST not in top
        if is_disk:
            # Copies that keep their times look alike. Without the inode, a version that
            # failed while it was being replaced would never be tried again.
            lines.append(f" is {folder_stat.st_ino}")
        is_barred = False
        for relative, entry in _entries_below(path):
            try:
                stat = entry.stat()
            except FileNotFoundError:
                lines.append(f"{relative} gone")
                continue
            except OSError as error:  # a link that leads nowhere
                lines.append(f"{relative} {error.errno}")
                is_barred |= error.errno in (errno.EACCES, errno.EPERM)
                continue
            if entry.is_file():
                line = f"{relative} {stat.st_size} {stat.st_mtime_ns}"
                if counts_changes:
                    line += f" {stat.st_ctime_ns}"
                if not _may_read(entry.path):
                    is_barred = True
                    line += " barred"
                elif relative == MANIFEST:
                    # Unpacked files often have the same old times.
                    line += f" {_short_digest(entry.path)}"
                lines.append(line)
            newest_s = max(newest_s, _changed_s(stat))
        digest = hashlib.sha256()
        for line in sorted(lines):
            digest.update(line.encode(errors="surrogateescape") + b"\n")
        return Contents(top, digest.hexdigest()[:32], newest_s, is_barred, is_linked)

    def _mountinfo(self) -> str:
        known, now_s = self._mounts_at_s, self._now()
        if known is None or now_s >= known[1] + _MOUNTS_KEPT_S:
            known = self._mounts_at_s = self._read_mountinfo(), now_s
        return known[0]

    def place(self, path: str) -> str:
        """Returns the mount point of a network file system, empty for a disk."""
        return silent_mount(self._mountinfo(), path)

    def gives_events(self, path: str) -> bool:
        """Whether ``path`` lies on a file system that inotify sees every change of."""
        return not silent_mount(self._mountinfo(), path)


def silent_mount(mountinfo: str, path: str) -> str:
    """Returns the mount point that ``path`` leads to if that mount gives no events.

    It returns an empty string if the mount gives events. Links are followed up to that
    mount, but nothing on it is touched, because a dead mount does not answer.

    Args:
        mountinfo: Contents of ``/proc/self/mountinfo``. Of several mounts at one point,
            the last one hides the others.
        path: Absolute.

    """
    at, left = "", path
    for _ in range(_MAX_NUM_LINKS):
        point, kind = _mount_of(mountinfo, f"{at}/{left}")
        if kind in SILENT_FILE_SYSTEMS or kind.startswith("fuse"):
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


def _mount_of(mountinfo: str, path: str) -> tuple[str, str]:
    """Returns the mount point above a path, without following links, and its type."""
    path = os.path.normpath(path).replace("//", "/")
    for point, kind in _mounts(mountinfo):
        if path == point or path.startswith(point.rstrip("/") + "/"):
            return point, kind
    return "", ""


@functools.lru_cache(maxsize=1)  # it rarely changes, and a thousand base paths ask
def _mounts(mountinfo: str) -> list[tuple[str, str]]:
    """Returns mount points with their types; the first that fits a path is right."""
    mounts = []
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if dash and len(fields) >= 5:
            point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
            mounts.append((point, right.split(" ", 1)[0]))
    mounts.reverse()  # of several mounts at one point the last one counts
    return sorted(mounts, key=lambda mount: -len(mount[0]))


def _entries_below(path: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields what lies below a directory, each with its path relative to it.

    Directories come before what is in them. Links to directories are not entered, and
    ignored folders are left out.

    Raises:
        OSError: A directory cannot be read, or there are too many entries.

    """
    num_entries = 0
    pending = [(path, "")]
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                num_entries += 1
                if num_entries > MAX_ENTRIES:
                    what = f"it holds more than {MAX_ENTRIES} files and folders"
                    raise OSError(errno.EFBIG, what, path)
                relative = prefix + entry.name
                is_folder = _is_directory(entry)
                if is_folder and entry.name in IGNORED_FOLDERS:
                    continue
                if is_folder and not entry.is_symlink():  # that may lead upwards
                    pending.append((entry.path, relative + "/"))
                yield relative, entry


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a bad link must not hide what lies beside it
        return False


def _may_read(path: str) -> bool:
    # If a file can be read now that could not be read before, another load is worth a
    # try, although nothing was written.
    return os.access(path, os.R_OK, effective_ids=_BY_EFFECTIVE_IDS)


def _short_digest(path: str) -> str:
    """Returns a digest of as much of a small file as can be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(MAX_DESCRIPTION_BYTES)).hexdigest()[:32]
    except OSError:
        return ""


def _changed_s(stat: os.stat_result) -> float:
    return max(stat.st_mtime, stat.st_ctime)
