"""What a directory holds, in digests, and what it has to hold to be a version."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sources.version_policy import name_versions
from tfs.core.version.manifest import MANIFEST
from tfs.core.version.version_layout import LAYOUTS, VERSION_FILES
from tfs.core.version_directory import (
    MAX_DESCRIPTION_BYTES,
    SIGNATURES,
)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a version directory at one moment. Immutable.

    Attributes:
        names: Its files and folders, top level only.
        fingerprint: Differs whenever a file was added, removed, renamed, resized
            or written again, or can be read now and could not before; also where times
            and sizes are the same, if the manifest differs or another directory is
            linked to. ``__pycache__`` does not count, because importing a version's
            code must not look like a change of the version.
        newest_change_s: When anything in it last changed, seconds since the epoch
            by the clock of the storage; None if the storage cannot tell.
        is_barred: Whether a file in it may not be read.
        is_linked: Whether its path, or something in it, is a link. Changes where that
            leads raise no event here.
        has_manifest: Whether a manifest is among its files; None if that was not looked
            at.
        folders: The paths of the directory and of those below it, which may be watched.

    """

    names: frozenset[str]
    fingerprint: str
    newest_change_s: float | None = None
    is_barred: bool = False
    is_linked: bool = False
    has_manifest: bool | None = None
    folders: tuple[str, ...] = ()


_MAX_NAMES: Final = 5  # most file names in a message


def what_is_missing(
    names: frozenset[str],
    platform: str,
    *,
    has_other_platforms: bool,
) -> str:
    """Returns what a directory without a manifest lacks to be served; "" if nothing.

    Args:
        names: The files and folders in it.
        platform: ``model_platform`` of the configuration; "" if that names none.
        has_other_platforms: Whether a directory of which nothing is known here may
            belong to another platform.

    """
    if any(
        not names.isdisjoint(layout.files)
        for layout in LAYOUTS.values()
        if layout.is_self_describing
    ):
        return ""
    if names and platform and platform not in LAYOUTS:
        # A third party's platform, which alone can tell, when it loads the version.
        return ""
    payloads = sorted(names.intersection(VERSION_FILES))
    if payloads and SIGNATURES in names:
        return ""
    if payloads:
        return (
            f"no {MANIFEST}, and {payloads[0]} alone does not say how it is called: "
            f"wait if it is still being copied, {MANIFEST} comes last; else write the "
            f"version with tfs.export.save, or put {SIGNATURES} beside it"
        )
    if "saved_model.pb" in names or "saved_model.pbtxt" in names:
        return "it is a TensorFlow SavedModel; export the model from PyTorch"
    if names and has_other_platforms and not platform:
        return ""  # as above: only its contents tell the platform
    wanted = ", ".join(sorted(VERSION_FILES))
    found = ", ".join(sorted(names)[:_MAX_NAMES])
    holds = f"no {MANIFEST} and none of {wanted}, but {found}"
    return (
        f"{holds if names else 'it is empty'}: wait if it is still being written, "
        "else write the version with tfs.export.save"
    )


def why_no_version(is_file: Callable[[str], bool], base_path: str) -> str:
    """Returns what to do about a base path in which no directory is a version."""
    folder, _, name = base_path.rpartition("/")
    is_number = bool(name_versions([name]))
    # Asking a store goes over the network, and happens every second while it shows no
    # version.
    is_cheap = is_number or "://" not in base_path
    files = (MANIFEST, *VERSION_FILES) if is_cheap else (MANIFEST,)
    if any(is_file(f"{base_path}/{file}") for file in files):
        if is_number:
            return f"it is a version itself; name {folder}, in which it lies"
        return f"the files of a version lie in it; move them to {base_path}/1"
    return f"a version is a directory with a number for its name, such as {base_path}/1"


IGNORED_FOLDERS: Final = frozenset({"__pycache__"})
MAX_ENTRIES: Final = 100_000
"""Most entries of a version directory. A directory with more is no version, whatever
its name; it may be a folder of a data set by year."""
MAX_LINKED_ENTRIES: Final = 10_000
"""Most entries that are looked at behind links; what more there is does not count."""

_BY_EFFECTIVE_IDS: Final = os.access in os.supports_effective_ids
_BARRED: Final = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to walk through: where, its path in the version, and what it lies on."""

    path: str
    prefix: str
    is_on_disk: bool
    is_linked: bool = False


class VersionInventory:
    """One walk through a version directory. Confined to its caller.

    Each file is described twice: by name, size, modification time and rights, and by
    what changes also if a tool keeps times. Links to directories are followed, but for
    those that lead to a folder above, or to one that was walked through already.

    Args:
        path: The version directory.
        is_disk: Whether a path lies on a file system whose inodes and times mean
            something. Network file systems may renumber inodes at any time, and make
            times up.

    """

    def __init__(self, path: str, is_disk: Callable[[str], bool]) -> None:
        self._path = path
        self._is_disk = is_disk
        self._home = os.path.realpath(path)
        self._lines: list[str] = []
        self._disk_changes: list[str] = []
        self._num_entries = self._num_linked = 0
        self._newest_s = 0.0
        self._is_barred = False
        self._is_linked = False
        self._linked_folders: set[str] = set()
        self._folders: list[str] = []

    def take(self) -> Contents:
        """Walks through the directory.

        Raises:
            OSError: It cannot be read, or holds more than :data:`MAX_ENTRIES`.

        """
        with contextlib.suppress(OSError):  # no link
            self._lines.append(f" -> {os.readlink(self._path)}")
            self._is_linked = True
        names = frozenset(os.listdir(self._path))
        status = os.stat(self._path)
        is_disk = self._is_disk(self._path)
        if is_disk:
            # Copies that keep their times look alike. Without the inode, a version that
            # failed while it was being replaced would never be tried again.
            self._lines.append(f" is {status.st_ino}")
        self._note_time(status)
        # What lies behind links comes last, so that it cannot make the rest too much.
        pending, linked = [_Folder(self._path, "", is_disk)], list[_Folder]()
        while pending or linked:
            folder = (pending or linked).pop()
            for each in self._take_folder(folder):
                (linked if each.is_linked else pending).append(each)
        if MANIFEST not in names:
            # A manifest says by digests what the files are. Without one the change times
            # are all that is left. Only then, because `chmod -R` and hard links change
            # them, too.
            self._lines += self._disk_changes
        return Contents(
            names,
            _digest(self._lines),
            self._newest_s,
            self._is_barred,
            self._is_linked,
            folders=tuple(self._folders),
        )

    def _take_folder(self, folder: _Folder) -> list[_Folder]:
        """Notes what lies in a folder; returns the folders in it that are to follow."""
        found: list[_Folder] = []
        try:
            entries = os.scandir(folder.path)
        except OSError as error:
            if not folder.is_linked:
                raise
            self._lines.append(f"{folder.prefix} {error.errno}")
            self._is_barred |= error.errno in _BARRED
            return found
        self._folders.append(folder.path)
        with entries:
            for entry in entries:
                if self._is_full(folder):
                    return []
                name = folder.prefix + entry.name
                is_folder, is_link = is_directory(entry), entry.is_symlink()
                if is_folder and entry.name in IGNORED_FOLDERS:
                    continue
                self._is_linked |= is_link
                if is_folder and not is_link:
                    found.append(replace(folder, path=entry.path, prefix=f"{name}/"))
                elif is_folder and self._is_new_link(entry.path):
                    on_disk = self._is_disk(entry.path)
                    found.append(_Folder(entry.path, f"{name}/", on_disk, True))
                self._take_entry(entry, name, folder.is_on_disk)
        return found

    def _is_full(self, folder: _Folder) -> bool:
        """Counts an entry; returns whether it is one too many behind links.

        Raises:
            OSError: It is one too many in the directory itself.

        """
        if folder.is_linked:
            self._num_linked += 1
            return self._num_linked > MAX_LINKED_ENTRIES
        self._num_entries += 1
        if self._num_entries > MAX_ENTRIES:
            what = f"it holds more than {MAX_ENTRIES} files and folders"
            raise OSError(errno.EFBIG, what, self._path)
        return False

    def _is_new_link(self, path: str) -> bool:
        """Whether a link leads to a folder that is not walked through otherwise."""
        real = os.path.realpath(path)
        if f"{self._home}/".startswith(f"{real.rstrip('/')}/"):  # upwards
            return False
        if real.startswith(f"{self._home}/") or real in self._linked_folders:
            return False
        self._linked_folders.add(real)
        return True

    def _take_entry(self, entry: os.DirEntry[str], name: str, is_disk: bool) -> None:
        try:
            status = entry.stat()
        except FileNotFoundError:
            self._lines.append(f"{name} gone")
            return
        except OSError as error:  # a link that leads nowhere
            self._lines.append(f"{name} {error.errno}")
            self._is_barred |= error.errno in _BARRED
            return
        if not entry.is_file():
            self._lines.append(f"{name}/")
        else:
            line = f"{name} {status.st_size} {status.st_mtime_ns}"
            if not _may_read(entry.path):
                self._is_barred = True
                line += " barred"
            elif name == MANIFEST:
                # Unpacked files often have the same old times.
                line += f" {_short_digest(entry.path)}"
            self._lines.append(line)
            if is_disk:
                change = f"{name} {status.st_ino} {status.st_ctime_ns}"
                self._disk_changes.append(change)
        self._note_time(status)

    def _note_time(self, status: os.stat_result) -> None:
        # ``cp -p`` and ``rsync -t`` set the modification time back.
        self._newest_s = max(self._newest_s, status.st_mtime, status.st_ctime)


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory or leads to one; a bad link does not."""
    try:
        return entry.is_dir()
    except OSError:  # it must not hide what lies beside it
        return False


def _digest(lines: list[str]) -> str:
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()[:32]


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
