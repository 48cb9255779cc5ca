"""Copies versions from remote storage to this machine, each only once.

    <root>/blobs/<sha256>            one file's bytes; see BlobStore
    <root>/versions/<key>/...        a version directory, linked to blobs; LocalCopies
    <root>/known/<digest>.json       which version a copy was made of; see CopyRecords
    <root>/lock                      held by the one process that uses the cache

A version's key is the digest of its manifest, which names the digest of every file. So
two base paths with the same version share one copy, two versions with the same
vocabulary share its bytes, and a key always means the same content. Files are checked
while they are copied, and a version appears by one rename. Rejected: keeping copies by
URL, which cannot tell a replaced version from the one it replaced.

The cache remembers which URL a copy came from and what the version looked like then (its
fingerprint). A version that still looks the same is not read again, so its copy can be
used while the store does not answer. The exception is a store that tells nothing of a
file but its size: there the manifest is read each time, if the store answers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sources.blob_store import BlobStore
from sources.copy_damage import UNVERIFIED
from sources.copy_records import CopyRecord, CopyRecords
from sources.local_copies import LocalCopies, remove
from sources.remote_storage import WEAK
from sources.storage import why
from sources.storage_path import StoragePath
from sources.version_policy import parse_version
from tfs.core.errors import FailedPrecondition, Unavailable
from tfs.core.manifest import MANIFEST, FileEntry, Manifest
from tfs.core.own_descriptors import OWN
from tfs.core.version_directory import TEMPORARY_PREFIX

log = logging.getLogger(__name__)

# Prefix of the fingerprint of a version that is taken from the cache without asking its
# store. If a store accepts calls and answers none, a driver waits for minutes.
_AS_COPIED: Final = "as copied: "
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class RemoteFiles(Protocol):
    """The storage that the cache reads. Thread-safe; every failure is an OSError."""

    def read(self, path: str) -> bytes:
        """Returns a small file's bytes."""
        ...

    def copy(self, path: str, to: BinaryIO) -> str:
        """Copies a file's bytes; returns their SHA-256 as hex digits."""
        ...

    def file_sizes(self, path: str) -> Mapping[str, int]:
        """Returns bytes by relative path, of all files under a directory."""
        ...


@dataclass(frozen=True, slots=True)
class VersionCacheOptions:
    """Where local copies lie, and how many. Immutable.

    Attributes:
        root: Directory of the cache; made if absent, used by one process at a time.
        max_bytes: Copies that nothing uses are removed, the longest unused first,
            when a new one would exceed this. None for no bound.

    """

    root: str
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if not os.path.isabs(self.root):
            raise ValueError(f"the cache's root must be absolute: {self.root}")
        if self.max_bytes is not None and self.max_bytes <= 0:
            raise ValueError(f"max_bytes must be positive: {self.max_bytes}")


LOCK: Final = "lock"
"""The file in a cache that its process holds locked."""


class VersionCache:
    """Copies versions from remote storage to this machine. Thread-safe.

    ``fetch`` blocks for as long as the copy takes: call it from a pool.
    """

    def __init__(self, options: VersionCacheOptions, remote: RemoteFiles) -> None:
        self._options = options
        self._remote = remote
        root = Path(options.root)
        versions = root / "versions"
        self._folders = (root / "blobs", versions, root / "known")
        self._versions = versions
        self._blobs = BlobStore(root / "blobs")
        self._records = CopyRecords(root / "known")
        self._copies = LocalCopies(
            versions, self._blobs, self._records, options.max_bytes
        )
        # Guards _lock_file; held while the directories are made and cleared.
        self._opening = threading.Lock()
        self._lock_file: BinaryIO | None = None

    def open(self) -> None:
        """Makes the directories, locks the cache for this process, clears leftovers.

        Raises:
            FailedPrecondition: Another process uses it, or it cannot be written.

        """
        with self._opening:
            if self._lock_file is None:
                self._lock_file = self._take_root()

    def _take_root(self) -> BinaryIO:
        try:
            Path(self._options.root).mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in self._folders:
                folder.mkdir(exist_ok=True)
            lock_file = open(Path(self._options.root, LOCK), "ab")  # noqa: SIM115
        except OSError as error:
            raise FailedPrecondition(
                f"cannot use the cache directory {self._options.root}: {why(error)}"
            ) from error
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock_file.close()
            raise FailedPrecondition(
                f"the cache directory {self._options.root} is used by another server; "
                "give each its own"
            ) from error
        for folder in self._folders:
            for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
                remove(leftover)
        self._records.read(lambda key: (self._versions / key).is_dir())
        OWN.add(lock_file.fileno())
        return lock_file

    def close(self) -> None:
        """Gives the cache up; the copies stay for the next start. Idempotent."""
        with self._opening:
            lock_file, self._lock_file = self._lock_file, None
            if lock_file is not None:
                OWN.remove(lock_file.fileno())
                lock_file.close()

    def fetch(self, version: StoragePath) -> StoragePath:
        """Returns a local copy of ``version``, made now unless there is one.

        The copy is in use, and stays, until :meth:`release` is called with the
        result as often as it was fetched.

        Raises:
            DataLoss: A file differs from what the manifest says.
            InvalidArgument: The manifest cannot be read as one.
            ResourceExhausted: It does not fit into the cache; nothing was copied.
            Unavailable: The storage or the disk failed; worth another try.

        """
        self.open()
        if not version.fingerprint.startswith(WEAK):
            copy = self._copy_of(version)
            if copy is not None:
                return copy
        try:
            manifest_bytes = self._read_manifest(version.path)
        except OSError as error:
            copy = self._copy_of(version)
            if copy is not None:
                log.warning("event=copy_used url=%s why=%s", version.path, why(error))
                return copy
            raise Unavailable(f"cannot copy {version.path}: {why(error)}") from error
        try:
            if manifest_bytes is None:
                key = (
                    UNVERIFIED
                    + hashlib.sha256(
                        f"{version.path} {version.fingerprint}".encode()
                    ).hexdigest()
                )
            else:
                key = hashlib.sha256(manifest_bytes).hexdigest()
            self._copies.use(key)
            try:
                if not self._copies.has(key, manifest_bytes):
                    self._make_as_it_fits(version.path, key, manifest_bytes)
                self._copies.touch(key)
            except BaseException:
                self._copies.unuse(key)
                raise
            if version.fingerprint:
                self._records.add(CopyRecord(version.path, version.fingerprint, key))
        except OSError as error:
            raise Unavailable(
                f"cannot copy {version.path} to {self._options.root}: {why(error)}"
            ) from error
        return self._handed_out(key, version)

    def copies(self, base_path: str) -> Mapping[int, StoragePath]:
        """Returns the versions under a URL that have a copy here, by number.

        This is for callers that cannot ask the store; ``fetch`` does not ask it either
        for a version that this returns. Reads this machine's disk. Empty if the cache
        cannot be used.
        """
        try:
            self.open()
        except FailedPrecondition as error:
            log.warning("event=cache_unusable problem=%s", error)
            return {}
        found = {}
        for version, record in self._records_of(base_path):
            if self._copies.path(record.key).is_dir():
                is_weak = record.fingerprint.startswith(WEAK)
                found[version] = StoragePath(
                    record.url, f"{_AS_COPIED if is_weak else ''}{record.fingerprint}"
                )
        return found

    def note_shown(self, base_path: str, versions: Collection[int]) -> None:
        """Takes note of the versions that a store shows under a URL.

        ``copies`` of a later process will not include versions that were no longer
        shown.
        """
        for version, record in self._records_of(base_path):
            self._records.set_lasting(record.url, lasting=version in versions)

    def release(self, copy: StoragePath) -> None:
        """Takes back one ``fetch``. An unused copy stays until it is evicted."""
        self._copies.unuse(os.path.basename(copy.path))

    def drop_if_damaged(self, copy: StoragePath) -> bool:
        """Removes a copy whose files have changed since they were copied.

        This reads all of them, so it blocks for long. The next fetch copies the version
        again and returns it with another fingerprint. A model that was loaded from the
        damaged copy keeps the files that it has open.

        Returns:
            Whether the copy was damaged.

        """
        return self._copies.drop_if_damaged(os.path.basename(copy.path))

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of all copies."""
        return self._copies.size_bytes

    # -- copies that are here ------------------------------------------------------

    def _records_of(self, base_path: str) -> Iterator[tuple[int, CopyRecord]]:
        start = f"{base_path.rstrip('/')}/"
        for record in self._records.below(start):
            version = parse_version(record.url.removeprefix(start))
            if version is not None:
                yield version, record

    def _copy_of(self, version: StoragePath) -> StoragePath | None:
        """Returns a copy made when the version looked as it does now; None without one.

        The copy is then in use.
        """
        if not version.fingerprint:
            return None
        record = self._records.find(version.path)
        fingerprint = version.fingerprint.removeprefix(_AS_COPIED)
        if record is None or record.fingerprint != fingerprint:
            return None
        copies = self._copies
        try:
            manifest_bytes = (copies.path(record.key) / MANIFEST).read_bytes()
        except FileNotFoundError:
            manifest_bytes = None
        except OSError:
            return None
        if (
            manifest_bytes is not None
            and hashlib.sha256(manifest_bytes).hexdigest() != record.key
        ):
            return None
        copies.use(record.key)
        if not copies.has(record.key, manifest_bytes):
            copies.unuse(record.key)
            return None
        with contextlib.suppress(OSError):
            copies.touch(record.key)
        return self._handed_out(record.key, version)

    def _handed_out(self, key: str, version: StoragePath) -> StoragePath:
        """Returns the copy's path; its fingerprint changes when it is copied again."""
        num = self._copies.num_remade(key)
        fingerprint = f"{key} made anew {num}" if num else key
        path = str(self._copies.path(key))
        return StoragePath(path, fingerprint, version.platform, version.settings)

    # -- copying -----------------------------------------------------------------

    def _read_manifest(self, url: str) -> bytes | None:
        try:
            return self._remote.read(f"{url}/{MANIFEST}")
        except FileNotFoundError:
            return None

    def _make_as_it_fits(
        self, url: str, key: str, manifest_bytes: bytes | None
    ) -> None:
        """Copies the version; if the disk is full, removes unused copies and tries again."""
        try:
            self._make(url, key, manifest_bytes)
        except OSError as error:
            if error.errno not in _DISK_FULL or not self._copies.evict_unused():
                raise
            log.warning("event=cache_disk_full root=%s", self._options.root)
            self._make(url, key, manifest_bytes)

    def _make(self, url: str, key: str, manifest_bytes: bytes | None) -> None:
        """Copies the version next to its place and renames it into it."""
        if manifest_bytes is None:
            sizes = self._remote.file_sizes(url)
            entries = {name: FileEntry(size, "") for name, size in sizes.items()}
            reserved_bytes = sum(sizes.values())
        else:
            manifest = Manifest.from_json(manifest_bytes.decode(errors="replace"), url)
            entries = dict(manifest.files)
            reserved_bytes = self._blobs.missing_bytes(entries.values())
        digests = tuple(entry.sha256 for entry in entries.values())
        with self._copies.room_for(reserved_bytes, digests, url) as arrived:
            temporary = Path(
                tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self._versions)
            )
            try:
                for name, entry in entries.items():
                    source, target = f"{url}/{name}", temporary / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    copy = functools.partial(self._remote.copy, source)
                    arrived(self._blobs.link(entry, target, copy, source))
                if manifest_bytes is not None:
                    (temporary / MANIFEST).write_bytes(manifest_bytes)
                self._copies.add(temporary, key)
            except OSError:
                if not self._copies.path(key).is_dir():  # another thread was first
                    raise
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
