"""The copies of versions on this machine: which there are, in use or not, and bounded.

A copy is a directory named by its key, whose files are links to blobs (see BlobStore).
It stays while anything uses it. When a new one would exceed the bound, copies that
nothing uses are removed, the longest unused first, together with the blobs that no other
copy links to. The order survives a restart, because each use sets the directory's time.

A copy whose files were cut short, or have changed, is no copy: it is removed when that
is noticed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from sources.blob_store import BlobStore
from sources.copy_damage import damage_of, is_whole
from sources.copy_records import CopyRecords
from sources.storage import why
from tfs.core.errors import ResourceExhausted
from tfs.core.version_directory import TEMPORARY_PREFIX

log = logging.getLogger(__name__)


class LocalCopies:
    """The copies of one cache, by key. Thread-safe; copies nothing itself.

    Invariants: a copy in use is never evicted. The bytes of all copies, and those that
    copies in progress will add, are within ``max_bytes``, except for what is in use.

    Args:
        folder: The directory of the copies; in the cache's root.
        blobs: The bytes of their files.
        records: What each was made of; forgotten with the copy.
        max_bytes: The bound; None for none.

    """

    def __init__(
        self,
        folder: Path,
        blobs: BlobStore,
        records: CopyRecords,
        max_bytes: int | None,
    ) -> None:
        self._folder = folder
        self._blobs = blobs
        self._records = records
        self._max_bytes = max_bytes
        # Guards the fields below, and the removal of copies. Ranks before the locks
        # of _blobs and _records, takes no other, and is never held while bytes are
        # copied.
        self._lock = threading.Lock()
        # By key: how often it is used.
        self._in_use: Counter[str] = Counter()
        self._reserved_bytes = 0  # bytes that copies in progress will add
        self._order: dict[str, int] = {}  # by key: when it was last used
        self._num_uses = 0
        self._whole: set[str] = set()  # keys checked, or made, since the start
        self._num_remade: Counter[str] = Counter()  # by key: how often since the start

    def path(self, key: str) -> Path:
        """Returns where a copy lies, or would."""
        return self._folder / key

    def num_remade(self, key: str) -> int:
        """Returns how often a copy was found damaged since the start."""
        return self._num_remade[key]

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of all copies."""
        return self._blobs.count_bytes()

    def has(self, key: str, manifest_bytes: bytes | None) -> bool:
        """Whether there is a copy of the version; removes one with files cut short.

        This is checked once per process, because a crash of the machine may leave files
        without their bytes. A file that was changed and kept its size is noticed by
        whoever loads it, and ``drop_if_damaged`` removes that copy.
        """
        path = self.path(key)
        with self._lock:
            if not path.is_dir():
                return False
            if key in self._whole:
                return True
            if manifest_bytes is not None and not is_whole(path, manifest_bytes):
                log.warning("event=cache_copy_damaged version=%s", key)
                remove(path)
                self._blobs.drop_unlinked()
                return False
            self._whole.add(key)
            return True

    def add(self, made: Path, key: str) -> None:
        """Moves a whole version into the place of a copy, unless one is there.

        Raises:
            OSError: It cannot be moved; or another was first, which is there then.

        """
        os.chmod(made, 0o755)
        with contextlib.suppress(FileExistsError):
            os.rename(made, self.path(key))
        with self._lock:
            self._whole.add(key)

    def touch(self, key: str) -> None:
        """Notes for after a restart that a copy was used now.

        Raises:
            OSError: The copy is not there, or cannot be changed.

        """
        os.utime(self.path(key))

    def drop_if_damaged(self, key: str) -> bool:
        """Removes a copy whose files have changed since they were copied.

        This reads all of them, so it blocks for long. Whoever has its files open keeps
        them.

        Returns:
            Whether the copy was damaged.

        """
        path = self.path(key)
        num_remade = self._num_remade[key]
        try:
            damage = damage_of(path, self._blobs.names_by_inode())
        except OSError as error:
            log.warning("event=cache_copy_unreadable path=%s why=%s", path, why(error))
            return False
        if damage is None:
            return False
        with self._lock:
            if self._num_remade[key] != num_remade:
                # Another user noticed it first, and there may be a new copy.
                return True
            log.warning("event=cache_copy_damaged version=%s why=%r", key, damage.why)
            self._blobs.drop(damage.blobs)
            remove(path)
            self._blobs.drop_unlinked()
            self._whole.discard(key)
            self._num_remade[key] += 1
        return True

    # -- use and bounds ------------------------------------------------------------

    def use(self, key: str) -> None:
        """Keeps a copy, whether there is one yet or not, until :meth:`unuse`."""
        with self._lock:
            self._in_use[key] += 1
            self._order.pop(key, None)
            self._num_uses += 1
            self._order[key] = self._num_uses

    def unuse(self, key: str) -> None:
        """Takes back one :meth:`use`. A copy that nothing uses stays until it is evicted."""
        with self._lock:
            self._in_use -= Counter((key,))

    @contextlib.contextmanager
    def room_for(
        self, wanted_bytes: int, digests: tuple[str, ...], url: str
    ) -> Iterator[Callable[[int], None]]:
        """Reserves room for a copy, and keeps the blobs that it needs, until it ends.

        Removes unused copies for it. Yields a function to call with the number of bytes
        that have arrived, because these count as held from then on.

        Args:
            wanted_bytes: What the copy will add.
            digests: Those of its files.
            url: What is copied, for the error.

        Raises:
            ResourceExhausted: What is in use leaves too little; nothing was reserved.

        """
        left_bytes = 0

        def take_back(num_bytes: int) -> None:
            nonlocal left_bytes
            with self._lock:
                num_bytes = min(num_bytes, left_bytes)
                left_bytes -= num_bytes
                self._reserved_bytes -= num_bytes

        self._blobs.keep(digests)
        try:
            with self._lock:
                self._make_room_locked(wanted_bytes, url)
                self._reserved_bytes += wanted_bytes
                left_bytes = wanted_bytes
            yield take_back
        finally:
            self._blobs.release(digests)
            take_back(left_bytes)

    def evict_unused(self) -> bool:
        """Removes every unused copy; returns whether that freed anything."""
        with self._lock:
            before = self._blobs.count_bytes()
            return self._evict_locked(-1) < before

    def _make_room_locked(self, wanted_bytes: int, url: str) -> None:
        limit = self._max_bytes
        if limit is None:
            return
        room = limit - self._reserved_bytes - wanted_bytes
        held = self._evict_locked(room)
        if held > room:
            raise ResourceExhausted(
                f"{url} takes {wanted_bytes} bytes; the cache in "
                f"{self._folder.parent} holds {held} that are in use, of "
                f"{limit} allowed"
            )

    def _evict_locked(self, room_bytes: int) -> int:
        """Removes unused copies, the longest unused first, until the rest fits.

        Returns the bytes that the rest takes, or more if they fit anyway.
        """
        held = self._blobs.held_bytes(room_bytes)
        if held <= room_bytes:
            return held
        unused = [
            path
            for path in self._folder.iterdir()
            if path.name not in self._in_use
            and not path.name.startswith(TEMPORARY_PREFIX)
        ]
        unused.sort(key=lambda p: (self._order.get(p.name, 0), _modified_s(p)))
        for path in unused:
            log.info("event=cache_evicted version=%s", path.name)
            remove(path)
            self._records.forget(path.name)
            self._blobs.drop_unlinked()
            held = self._blobs.count_bytes()
            if held <= room_bytes:
                break
        return held


def remove(path: Path) -> None:
    """Removes a file, or a directory with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
