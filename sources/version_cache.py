"""Local copies of remote versions: verified, addressed by content, bounded.

    <root>/blobs/<sha256>            one file's bytes
    <root>/versions/<key>/...        a version directory, its files linked to blobs
    <root>/known/<digest>.json       which URL a copy was made of, when it looked how
    <root>/lock                      held by the one process that uses the cache

A version's key is the digest of its manifest, which names the digest of every file:
two base paths with the same version share one copy, two versions with the same
vocabulary share its bytes, and what lies under a key can be nothing else. Files are
checked while they are copied; a version appears by one rename. Rejected: keeping
copies by URL, which cannot tell a replaced version from the one it replaced.

What a copy was made of is remembered, so that it can be found while the store does not
answer: by the URL and the fingerprint that the version's files had then. A version that
looks as it did is not read again, if its store tells more of files than their size.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sources.remote_storage import WEAK
from sources.scan import why
from sources.storage_path import StoragePath
from sources.version_policy import parse_version
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.manifest import MANIFEST, FileEntry, Manifest
from tfs.core.replaced_file import replace_file
from tfs.core.right_of_way import make_way
from tfs.core.version_directory import TEMPORARY_PREFIX, file_digest

log = logging.getLogger(__name__)

_UNVERIFIED: Final = "unverified-"
# Begins what a version looked like that is to be had without its store, and not asked for
# there: one that takes every call and answers none has drivers wait for minutes.
_AS_COPIED: Final = "as copied: "
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a copy was made of: a version's fingerprint, and the copy's key. Immutable."""

    fingerprint: str
    key: str


class RemoteFiles(Protocol):
    """What the cache reads from. Thread-safe; every failure is an OSError."""

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
    """Where local copies lie and how many. Immutable.

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

    ``fetch`` blocks for as long as the copy takes: call it from a pool.
    """

    def __init__(self, options: VersionCacheOptions, remote: RemoteFiles) -> None:
        self._options = options
        self._remote = remote
        self._blobs = Path(options.root, "blobs")
        self._versions = Path(options.root, "versions")
        self._known_folder = Path(options.root, "known")
        # Guards _in_use, _order, _whole, _num_uses, _most_bytes, _busy, _reserved_bytes,
        # _known, _num_remade and the removal of files; leaf, never held while bytes are
        # copied.
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}  # by URL of the version
        self._in_use: dict[str, int] = {}
        self._busy: Counter[str] = Counter()  # blobs that copies in progress need
        self._reserved_bytes = 0
        self._order: dict[str, int] = {}  # by key: when it was last used
        self._num_uses = 0
        # Copies that were looked at, or made, since the start.
        self._whole: set[str] = set()
        self._num_remade: Counter[str] = Counter()  # by key, since the start
        # No less than the blobs take; counted when that might be too much: to look at
        # every blob for every copy took most of the time of thousands.
        self._most_bytes: int | None = None
        # Guards _lock_file; held while the directories are made and cleared.
        self._opening = threading.Lock()
        self._lock_file: BinaryIO | None = None

    def open(self) -> None:
        """Makes the directories, takes the cache for this process, clears leftovers.

        Raises:
            FailedPrecondition: Another process uses it, or it cannot be written.

        """
        with self._opening:
            if self._lock_file is None:
                self._lock_file = self._take_root()

    def _take_root(self) -> BinaryIO:
        try:
            Path(self._options.root).mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._blobs, self._versions, self._known_folder):
                folder.mkdir(exist_ok=True)
            lock_file = open(Path(self._options.root, "lock"), "ab")  # noqa: SIM115
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
        for folder in (self._blobs, self._versions, self._known_folder):
            for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
                _remove(leftover)
        self._read_known()
        return lock_file

    def close(self) -> None:
        """Gives the cache up; the copies stay for the next start. Idempotent."""
        with self._opening:
            lock_file, self._lock_file = self._lock_file, None
            if lock_file is not None:
                lock_file.close()

    def fetch(self, version: StoragePath) -> StoragePath:
        """Returns a local copy of ``version``, made now unless there is one.

        The copy is in use, and stays, until :meth:`release` is called with the
        result as often as it was fetched.

        Raises:
            DataLoss: A file differs from what the manifest says.
            InvalidArgument: The manifest is none.
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
                    _UNVERIFIED
                    + hashlib.sha256(
                        f"{version.path} {version.fingerprint}".encode()
                    ).hexdigest()
                )
            else:
                key = hashlib.sha256(manifest_bytes).hexdigest()
            path = self._versions / key
            self._use(key)
            try:
                if not self._has_copy(path, manifest_bytes):
                    self._make_as_it_fits(version.path, path, manifest_bytes)
                os.utime(path)  # for the order of eviction after a restart
            except BaseException:
                self._unuse(key)
                raise
            self._note_known(version, key)
        except OSError as error:
            raise Unavailable(
                f"cannot copy {version.path} to {self._options.root}: {why(error)}"
            ) from error
        return self._handed_out(key, version)

    def copies(self, base_path: str) -> Mapping[int, StoragePath]:
        """Returns which versions under a URL have a copy here, as they looked then.

        For callers that cannot ask the store; ``fetch`` of these versions does not ask it
        either. Reads this machine's disk; empty where the cache cannot be used.
        """
        try:
            self.open()
        except FailedPrecondition as error:
            log.warning("event=cache_unusable problem=%s", error)
            return {}
        start = f"{base_path.rstrip('/')}/"
        with self._lock:
            known = [(u, k) for u, k in self._known.items() if u.startswith(start)]
        found = {}
        for url, copy in known:
            version = parse_version(url.removeprefix(start))
            if version is not None and (self._versions / copy.key).is_dir():
                is_weak = copy.fingerprint.startswith(WEAK)
                found[version] = StoragePath(
                    url, f"{_AS_COPIED if is_weak else ''}{copy.fingerprint}"
                )
        return found

    def release(self, copy: StoragePath) -> None:
        """Says that a fetched copy is not used any more; it stays until evicted."""
        self._unuse(os.path.basename(copy.path))

    def drop_if_damaged(self, copy: StoragePath) -> bool:
        """Removes a copy whose files are others than were copied; reads them all.

        The next fetch makes it anew, and returns it with another fingerprint. Who has
        loaded it already keeps what it has open.

        Returns:
            Whether it was damaged.

        """
        path = Path(copy.path)
        problem, blobs = self._damage_of(path)
        if not problem:
            return False
        log.warning("event=cache_copy_damaged version=%s why=%r", path.name, problem)
        with self._lock:
            for blob in blobs:
                _remove(blob)
            _remove(path)
            self._drop_orphans_locked()
            self._whole.discard(path.name)
            self._num_remade[path.name] += 1
            self._most_bytes = None
        return True

    def _damage_of(self, path: Path) -> tuple[str, list[Path]]:
        """Returns what is wrong with a copy, "" if nothing, and the blobs that are bad."""
        try:
            blobs = {blob.stat().st_ino: blob for blob in self._blobs.iterdir()}
            digests = _promised_digests(path)
            files = [each for each in path.rglob("*") if each.is_file()]
            if missing := digests.keys() - {
                str(each.relative_to(path)) for each in files
            }:
                return f"{min(missing)} is gone", []
            changed, bad = "", []
            for file in files:
                name, blob = str(file.relative_to(path)), blobs.get(file.stat().st_ino)
                promised = digests.get(name) or (blob.name if blob else "")
                make_way()
                if name != MANIFEST and file_digest(str(file)) != promised:
                    changed = changed or f"{name} is another file"
                    bad += [blob] if blob else []
        except (FileNotFoundError, ServingError) as error:
            return str(error), []
        except OSError as error:
            log.warning("event=cache_copy_unreadable path=%s why=%s", path, why(error))
            return "", []
        return changed, bad

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of all copies."""
        return sum(_size_bytes(blob) for blob in self._blobs.glob("*"))

    # -- what copies were made of --------------------------------------------------

    def _copy_of(self, version: StoragePath) -> StoragePath | None:
        """Returns the copy of a version that looks as it did, in use then."""
        if not version.fingerprint:
            return None
        with self._lock:
            known = self._known.get(version.path)
        looked_like = version.fingerprint.removeprefix(_AS_COPIED)
        if known is None or known.fingerprint != looked_like:
            return None
        path = self._versions / known.key
        try:
            manifest_bytes = (path / MANIFEST).read_bytes()
        except FileNotFoundError:
            manifest_bytes = None
        except OSError:
            return None
        if (
            manifest_bytes is not None
            and hashlib.sha256(manifest_bytes).hexdigest() != known.key
        ):
            return None
        self._use(known.key)
        if not self._has_copy(path, manifest_bytes):
            self._unuse(known.key)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return self._handed_out(known.key, version)

    def _handed_out(self, key: str, version: StoragePath) -> StoragePath:
        """Returns a copy as whoever loads it sees it: another one if it was made anew."""
        num = self._num_remade[key]
        fingerprint = f"{key} made anew {num}" if num else key
        path = str(self._versions / key)
        return StoragePath(path, fingerprint, version.platform, version.settings)

    def _note_known(self, version: StoragePath, key: str) -> None:
        """Remembers what a copy was made of; it serves without that as well."""
        known = _Known(version.fingerprint, key)
        with self._lock:
            if not version.fingerprint or self._known.get(version.path) == known:
                return
            self._known[version.path] = known
        form = {"url": version.path, "fingerprint": known.fingerprint, "key": key}
        place = self._place_of(version.path)
        try:
            replace_file(str(place), json.dumps(form))
        except OSError as error:
            log.warning("event=copy_not_remembered url=%s why=%s", version.path, error)

    def _read_known(self) -> None:
        """Reads what copies were made of, and forgets those that are gone."""
        known = {}
        for place in self._known_folder.glob("*.json"):
            try:
                form = json.loads(place.read_text())
                url, copy = form["url"], _Known(form["fingerprint"], form["key"])
            except (OSError, ValueError, KeyError, TypeError):
                _remove(place)
                continue
            if (self._versions / copy.key).is_dir():
                known[url] = copy
            else:
                _remove(place)
        with self._lock:
            self._known = known

    def _place_of(self, url: str) -> Path:
        return self._known_folder / f"{hashlib.sha256(url.encode()).hexdigest()}.json"

    def _forget_locked(self, key: str) -> None:
        """Forgets of what a copy was made that is removed."""
        for url in [u for u, known in self._known.items() if known.key == key]:
            del self._known[url]
            _remove(self._place_of(url))

    # -- copying -----------------------------------------------------------------

    def _has_copy(self, path: Path, manifest_bytes: bytes | None) -> bool:
        """Whether the version is here; a copy that was cut off since goes.

        Looked at once per process: a crash of the machine may leave files without their
        bytes. What was changed and kept its size is found by whoever loads it, and goes
        by ``drop_if_damaged``.
        """
        with self._lock:
            if not path.is_dir():
                return False
            if path.name in self._whole:
                return True
            if manifest_bytes is not None and not _is_whole(path, manifest_bytes):
                log.warning("event=cache_copy_damaged version=%s", path.name)
                _remove(path)
                self._drop_orphans_locked()
                return False
            self._whole.add(path.name)
            return True

    def _read_manifest(self, url: str) -> bytes | None:
        try:
            return self._remote.read(f"{url}/{MANIFEST}")
        except FileNotFoundError:
            return None

    def _make_as_it_fits(
        self, url: str, path: Path, manifest_bytes: bytes | None
    ) -> None:
        """Copies the version; where the disk is full, in the place of what nothing uses."""
        try:
            self._make(url, path, manifest_bytes)
        except OSError as error:
            if error.errno not in _DISK_FULL or not self._evict_unused():
                raise
            log.warning("event=cache_disk_full root=%s", self._options.root)
            self._make(url, path, manifest_bytes)

    def _make(self, url: str, path: Path, manifest_bytes: bytes | None) -> None:
        """Copies the version next to its place and renames it into it."""
        if manifest_bytes is None:
            sizes = self._remote.file_sizes(url)
            entries = {name: FileEntry(size, "") for name, size in sizes.items()}
            reserved_bytes = sum(sizes.values())
        else:
            manifest = Manifest.from_json(manifest_bytes.decode(errors="replace"), url)
            entries = dict(manifest.files)
            # By digest: files with the same bytes are stored once.
            missing = {
                entry.sha256: entry.size_bytes
                for entry in manifest.files.values()
                if not self._has_blob(entry)
            }
            reserved_bytes = sum(missing.values())
        digests = tuple(entry.sha256 for entry in entries.values())
        self._reserve(reserved_bytes, digests, url)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self._versions))
        try:
            for name, entry in entries.items():
                blob = self._blob(f"{url}/{name}", entry)
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(blob, target)
            if manifest_bytes is not None:
                (temporary / MANIFEST).write_bytes(manifest_bytes)
            os.chmod(temporary, 0o755)
            with contextlib.suppress(FileExistsError):
                os.rename(temporary, path)
            with self._lock:
                self._whole.add(path.name)
        except OSError:
            if not path.is_dir():  # another thread was first
                raise
        finally:
            with self._lock:
                self._reserved_bytes -= reserved_bytes
                self._busy -= Counter(digests)
            shutil.rmtree(temporary, ignore_errors=True)

    def _has_blob(self, entry: FileEntry) -> bool:
        """Whether a file's bytes are here, all of them."""
        path = self._blobs / entry.sha256
        return path.exists() and _size_bytes(path) == entry.size_bytes

    def _blob(self, url: str, entry: FileEntry) -> Path:
        """Returns the file with the URL's bytes, whose digest, if known, is checked."""
        digest = entry.sha256
        if digest and self._has_blob(entry):
            return self._blobs / digest
        fd, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=self._blobs)
        temporary = Path(name)
        try:
            with os.fdopen(fd, "wb") as file:
                actual = self._remote.copy(url, file)
                file.flush()
                os.fsync(file.fileno())
            if digest and actual != digest:
                raise DataLoss(
                    f"{url} does not match the sha256 in its manifest; "
                    "write the version again"
                )
            os.chmod(temporary, 0o444)  # shared by versions: nobody may change it
            blob = self._blobs / actual
            with self._lock:
                if self._most_bytes is not None:
                    self._most_bytes += _size_bytes(temporary)
            os.replace(temporary, blob)
        finally:
            temporary.unlink(missing_ok=True)
        return blob

    # -- bounds ------------------------------------------------------------------

    def _use(self, key: str) -> None:
        with self._lock:
            self._in_use[key] = self._in_use.get(key, 0) + 1
            self._order.pop(key, None)
            self._num_uses += 1
            self._order[key] = self._num_uses

    def _unuse(self, key: str) -> None:
        with self._lock:
            left = self._in_use.get(key, 0) - 1
            if left > 0:
                self._in_use[key] = left
            else:
                self._in_use.pop(key, None)

    def _reserve(self, wanted_bytes: int, digests: tuple[str, ...], url: str) -> None:
        """Makes room for a copy, removing what nothing uses."""
        limit = self._options.max_bytes
        with self._lock:
            self._busy += Counter(digests)
            if limit is not None:
                room = limit - self._reserved_bytes - wanted_bytes
                held = self._evict_locked(room, self._in_use)
                if held > room:
                    self._busy -= Counter(digests)
                    raise ResourceExhausted(
                        f"{url} takes {wanted_bytes} bytes; the cache in "
                        f"{self._options.root} holds {held} that are in use, of "
                        f"{limit} allowed"
                    )
            self._reserved_bytes += wanted_bytes

    def _evict_unused(self) -> bool:
        """Removes every copy that nothing uses; returns whether there was one."""
        with self._lock:
            before = self._most_bytes = self.size_bytes
            return self._evict_locked(-1, self._in_use) < before

    def _evict_locked(self, room_bytes: int, kept: Collection[str]) -> int:
        """Removes unused versions, the longest unused first, until the rest fits.

        Returns what is held then, or more.
        """
        if self._most_bytes is not None and self._most_bytes <= room_bytes:
            return self._most_bytes
        held = self._most_bytes = self.size_bytes
        if held <= room_bytes:
            return held
        unused = [
            path
            for path in self._versions.iterdir()
            if path.name not in kept and not path.name.startswith(TEMPORARY_PREFIX)
        ]
        unused.sort(key=lambda p: (self._order.get(p.name, 0), _modified_s(p)))
        for path in unused:
            log.info("event=cache_evicted version=%s", path.name)
            _remove(path)
            self._forget_locked(path.name)
            self._drop_orphans_locked()
            held = self._most_bytes = self.size_bytes
            if held <= room_bytes:
                break
        return held

    def _drop_orphans_locked(self) -> None:
        for blob in self._blobs.iterdir():
            if blob.name.startswith(TEMPORARY_PREFIX) or blob.name in self._busy:
                continue
            with contextlib.suppress(FileNotFoundError):
                if blob.stat().st_nlink == 1:
                    blob.unlink()


def _is_whole(path: Path, manifest_bytes: bytes) -> bool:
    """Whether a copy has this manifest, and all files of it in their sizes."""
    try:
        if (path / MANIFEST).read_bytes() != manifest_bytes:
            return False
        manifest = Manifest.from_json(
            manifest_bytes.decode(errors="replace"), str(path)
        )
    except (OSError, InvalidArgument):
        return False
    return all(
        _size_bytes(path / name) == entry.size_bytes
        for name, entry in manifest.files.items()
    )


def _promised_digests(path: Path) -> dict[str, str]:
    """Returns the digest of each file by the copy's manifest; empty without one.

    Raises:
        ServingError: The manifest is another one than was copied.
        OSError: It cannot be read, or there is no copy.

    """
    if path.name.startswith(_UNVERIFIED):
        os.listdir(path)
        return {}
    content = (path / MANIFEST).read_bytes()
    if hashlib.sha256(content).hexdigest() != path.name:
        raise DataLoss(f"{MANIFEST} is another file")
    files = Manifest.from_json(content.decode(), str(path)).files
    return {name: entry.sha256 for name, entry in files.items()}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
