"""Copies versions from remote storage to this machine, each only once, before they are loaded.

    <root>/versions/<key>/...        a version directory
    <root>/lock                      held by the one process that uses the cache

A version's key is the digest of its manifest, which names the digest of every file. So
two base paths with the same version share one copy, and a key always means the same
content. Files are checked while they are copied, and a version appears by one rename.
Rejected: keeping copies by URL, which cannot tell a replaced version from the one it
replaced; and sharing the files of different versions, which saved little and needed links,
counts and repairs of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Generic, Protocol, TypeVar

from sources.servable_to_monitor import StoragePath
from sources.storage.file_system import why
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
)
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.system.replaced_file import TEMPORARY_PREFIX
from tfs.core.version.manifest import MANIFEST, FileEntry, Manifest, inside

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOCK: Final = "lock"
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# A cache that is being opened has its lock file a moment before its lock.
_LEAST_AGE_S: Final = 60.0


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


class VersionCache:
    """Copies versions from remote storage to this machine. Thread-safe.

    ``fetch`` blocks for as long as the copy takes: call it from a pool. A copy in use is
    never removed. The bytes of all copies, those on their way included, are within
    ``max_bytes``, except for what is in use.
    """

    def __init__(self, options: VersionCacheOptions, remote: RemoteFiles) -> None:
        self._root = Path(options.root)
        self._versions = self._root / "versions"
        self._max_bytes = options.max_bytes
        self._remote = remote
        # Guards the fields below, and the removal of copies. A leaf, never held while
        # bytes are copied.
        self._lock = threading.Condition()
        self._lock_file: BinaryIO | None = None
        # Bytes by key, of copies that are here or on their way, the longest unused first.
        self._sizes: dict[str, int] = {}
        self._num_users: Counter[str] = Counter()  # by key
        self._copying: set[str] = set()  # keys; who wants one of them waits
        self._keys: dict[StoragePath, str] = {}  # of what was copied from where

    def open(self) -> None:
        """Makes the directories, locks the cache for this process, clears leftovers.

        Raises:
            FailedPrecondition: Another process uses it, or it cannot be written.

        """
        with self._lock:
            if self._lock_file is None:
                self._lock_file = self._take_root()
                self._sizes = self._find_copies()

    def close(self) -> None:
        """Gives the cache up; the copies stay for the next start. Idempotent."""
        with self._lock:
            lock_file, self._lock_file = self._lock_file, None
            if lock_file is not None:
                lock_file.close()

    def fetch(self, version: StoragePath) -> StoragePath:
        """Returns a local copy of ``version``, made now unless there is one.

        The store is not asked about files that were copied and did not change since.
        The copy is in use, and stays, until :meth:`release` is called with the
        result as often as it was fetched.

        Raises:
            DataLoss: The manifest cannot be read as one, or a file differs from what it
                says.
            ResourceExhausted: It does not fit into the cache; nothing was copied.
            Unavailable: The storage or the disk failed; worth another try.

        """
        self.open()
        url = version.path
        key = self._reuse(version)
        try:
            if not key:
                key = self._fetch(version)
        except OSError as error:
            raise Unavailable(
                f"cannot copy {url} to {self._root}: {why(error)}"
            ) from error
        return StoragePath(
            str(self._versions / key), key, version.platform, version.settings
        )

    def release(self, copy: StoragePath) -> None:
        """Takes back one ``fetch``. An unused copy stays until its room is needed."""
        with self._lock:
            self._num_users -= Counter((os.path.basename(copy.path),))

    @property
    def size_bytes(self) -> int:
        """Bytes of all copies, those on their way included; manifests do not count."""
        with self._lock:
            return sum(self._sizes.values())

    # -- the directory -------------------------------------------------------------

    def _take_root(self) -> BinaryIO:
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._versions.mkdir(exist_ok=True)
            lock_file = open(self._root / _LOCK, "ab")  # noqa: SIM115
        except OSError as error:
            raise FailedPrecondition(
                f"cannot use the cache directory {self._root}: {why(error)}"
            ) from error
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock_file.close()
            raise FailedPrecondition(
                f"the cache directory {self._root} is used by another server; give each "
                "its own"
            ) from error
        return lock_file

    def _find_copies(self) -> dict[str, int]:
        """Removes half copies; returns the bytes of the others, the longest unused first."""
        for leftover in self._versions.glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        folders = sorted(
            self._versions.iterdir(), key=lambda each: each.stat().st_mtime
        )
        return {
            folder.name: sum(
                file.stat().st_size
                for file in folder.rglob("*")
                if file.is_file() and file.name != MANIFEST
            )
            for folder in folders
        }

    # -- copying -------------------------------------------------------------------

    def _reuse(self, version: StoragePath) -> str:
        """Returns the key of a copy that is here, and uses it; "" if there is none."""
        with self._lock:
            key = self._keys.get(version, "")
            if not key or not (self._versions / key).is_dir():
                return ""
            self._num_users[key] += 1
            self._sizes[key] = self._sizes.pop(key)
            return key

    def _fetch(self, version: StoragePath) -> str:
        url = version.path
        manifest = self._read_manifest(url)
        # Without a manifest only the look of its files tells a version from others.
        content = manifest or f"{url} {version.fingerprint}".encode()
        digest = hashlib.sha256(content).hexdigest()
        key = digest if manifest is not None else f"unverified-{digest}"
        with self._used(key):
            self._copy_unless_here(url, key, manifest)
        if version.fingerprint:
            with self._lock:
                self._keys[version] = key
        return key

    def _read_manifest(self, url: str) -> bytes | None:
        try:
            return self._remote.read(f"{url}/{MANIFEST}")
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _used(self, key: str) -> Iterator[None]:
        """Notes a use of a copy, which lasts if the block ends without an error."""
        with self._lock:
            self._num_users[key] += 1
        try:
            yield
            with contextlib.suppress(OSError):
                os.utime(self._versions / key)  # the order outlives the process
            with self._lock:
                self._sizes[key] = self._sizes.pop(key)
        except BaseException:
            with self._lock:
                self._num_users -= Counter((key,))
            raise

    def _copy_unless_here(self, url: str, key: str, manifest: bytes | None) -> None:
        with self._lock:
            self._lock.wait_for(lambda: key not in self._copying)
            if (self._versions / key).is_dir():
                return
            self._copying.add(key)
        try:
            self._copy(url, key, manifest)
        except OSError as error:
            if error.errno not in _DISK_FULL or not self._evict_unused():
                raise
            log.warning("event=cache_disk_full root=%s", self._root)
            self._copy(url, key, manifest)
        finally:
            with self._lock:
                self._copying.discard(key)
                self._lock.notify_all()

    def _copy(self, url: str, key: str, manifest: bytes | None) -> None:
        """Copies a version next to its place and renames it into it."""
        if manifest is None:
            sizes = self._remote.file_sizes(url)
            try:
                entries = {inside(n): FileEntry(size, "") for n, size in sizes.items()}
            except ValueError as error:  # keys of objects are any text
                raise DataLoss(f"{url}: {error}") from error
        else:
            text = manifest.decode(errors="replace")
            entries = dict(Manifest.from_json(text, url).files)
        num_bytes = sum(entry.size_bytes for entry in entries.values())
        self._reserve(key, num_bytes, url)
        temporary = None
        try:
            made = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self._versions)
            temporary = Path(made)
            for name, entry in entries.items():
                self._copy_file(f"{url}/{name}", entry, temporary / name)
            if manifest is not None:
                (temporary / MANIFEST).write_bytes(manifest)
            temporary.chmod(0o755)
            temporary.rename(self._versions / key)
        except BaseException:
            with self._lock:
                self._sizes.pop(key, None)
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _copy_file(self, source: str, entry: FileEntry, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as file:
            digest = self._remote.copy(source, file)
            file.flush()
            os.fsync(file.fileno())
        if entry.sha256 and digest != entry.sha256:
            raise DataLoss(
                f"{source} does not match the sha256 in its manifest; "
                "write the version again"
            )
        target.chmod(0o444)  # base paths share the copy, so nobody may change it

    # -- room ----------------------------------------------------------------------

    def _reserve(self, key: str, num_bytes: int, url: str) -> None:
        """Sets room aside for a copy; removes unused copies for it.

        Raises:
            ResourceExhausted: What is in use leaves too little; nothing is set aside.

        """
        with self._lock:
            limit = self._max_bytes
            if limit is not None:
                held = self._evict_locked(limit - num_bytes)
                if held + num_bytes > limit:
                    raise ResourceExhausted(
                        f"{url} takes {num_bytes} bytes; the cache in {self._root} holds "
                        f"{held} that are in use, of {limit} allowed"
                    )
            self._sizes[key] = num_bytes

    def _evict_unused(self) -> bool:
        with self._lock:
            num_copies = len(self._sizes)
            self._evict_locked(-1)
            return len(self._sizes) < num_copies

    def _evict_locked(self, room_bytes: int) -> int:
        """Removes unused copies, the longest unused first, until the rest fits.

        Returns the bytes of the rest.
        """
        held = sum(self._sizes.values())
        for key in [each for each in self._sizes if not self._num_users[each]]:
            if held <= room_bytes:
                break
            log.info("event=cache_evicted version=%s", key)
            shutil.rmtree(self._versions / key, ignore_errors=True)
            held -= self._sizes.pop(key)
            self._keys = {of: each for of, each in self._keys.items() if each != key}
        return held


def remove_left_caches(parent: str, prefix: str, now_s: float) -> None:
    """Removes caches that servers left behind which were killed. Blocks; never raises.

    Their lock tells that they are gone: the system lets go of it with the process.
    Rejected: to name directories after processes, whose numbers are used again.

    Args:
        parent: The directory they lie in.
        prefix: How their names begin. Others' directories are left alone.
        now_s: Seconds since the epoch.

    """
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        named = [entry.path for entry in entries if entry.name.startswith(prefix)]
        for root in named:
            with contextlib.suppress(OSError):
                if os.lstat(root).st_uid == os.geteuid():
                    _remove_unless_held(root, now_s)


def _remove_unless_held(root: str, now_s: float) -> None:
    folder = os.open(root, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        status = os.fstat(lock)
        if stat.S_ISREG(status.st_mode) and now_s - status.st_mtime >= _LEAST_AGE_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
            log.info("event=left_copies_removed path=%s", root)
    finally:
        os.close(lock)


class FetchingLoader(Generic[T]):
    """Loads the local copy of a remote version. Confined to one caller at a time.

    The first estimate, or the load, blocks for as long as the copy takes; if that fails,
    the next attempt tries again. The copy is in use until the version is unloaded, or this
    loader is gone.

    Args:
        version: Where the version lies, as a URL.
        cache: Holds the copies.
        make: Makes the loader of a version directory.

    """

    def __init__(
        self,
        version: StoragePath,
        cache: VersionCache,
        make: Callable[[str], Loader[T]],
    ) -> None:
        self._version = version
        self._cache = cache
        self._make = make
        # The loader of the copy, and what gives the copy back.
        self._copy: tuple[Loader[T], Callable[[], object]] | None = None

    @property
    def servable(self) -> T:
        if self._copy is None:
            raise FailedPrecondition(f"{self._version.path} is not loaded")
        return self._copy[0].servable

    def estimate_resources(self) -> ResourceAllocation:
        return self._fetched().estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        self._fetched().load(servable_id)

    def unload(self) -> None:
        if self._copy is None:
            return
        (loader, release), self._copy = self._copy, None
        try:
            loader.unload()
        finally:
            release()

    def _fetched(self) -> Loader[T]:
        """Returns the loader of the local copy, which is made unless it is here.

        Raises:
            ServingError: It cannot be copied, or nobody can load it.

        """
        if self._copy is None:
            copy = self._cache.fetch(self._version)
            release = weakref.finalize(self, self._cache.release, copy)
            release.atexit = False
            try:
                loader = self._make(copy.path)
            except BaseException:
                release()
                raise
            self._copy = loader, release
        return self._copy[0]
