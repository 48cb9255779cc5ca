"""The bytes of files, stored once per content and linked into the directories that use them.

A blob is named after the SHA-256 of its bytes and never changes. A directory shares it
by a hard link, so the file system itself counts the users: a blob with a single link
belongs to nothing and may be removed. Rejected: a count of our own, which a crash would
leave wrong.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from tfs.core.errors import DataLoss
from tfs.core.manifest import FileEntry
from tfs.core.version_directory import TEMPORARY_PREFIX


class BlobStore:
    """One directory of blobs, used by one process. Thread-safe.

    Args:
        folder: The directory, absolute; it has to exist before the first call.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Guards _needed and _most_bytes, and orders linking against removal. Ranks
        # after the lock of whoever owns the store; a leaf otherwise. It is never held
        # while bytes are copied.
        self._lock = threading.Lock()
        self._needed: Counter[str] = Counter()  # digests that copies in progress need
        # An upper bound of the bytes of all blobs; None until they were counted. With
        # thousands of blobs, looking at each of them for every copy took most of the
        # time.
        self._most_bytes: int | None = None

    def has(self, entry: FileEntry) -> bool:
        """Whether all bytes of a file are in the store."""
        path = self._folder / entry.sha256
        return path.exists() and size_of(path) == entry.size_bytes

    def missing_bytes(self, entries: Iterable[FileEntry]) -> int:
        """Returns how many bytes have to be copied for these files."""
        missing = {
            each.sha256: each.size_bytes for each in entries if not self.has(each)
        }
        return sum(missing.values())

    def keep(self, digests: Iterable[str]) -> None:
        """Keeps these blobs, linked or not, until they are released as many times."""
        with self._lock:
            self._needed += Counter(digests)

    def release(self, digests: Iterable[str]) -> None:
        """Takes back one ``keep``."""
        with self._lock:
            self._needed -= Counter(digests)

    def link(
        self,
        entry: FileEntry,
        target: Path,
        copy: Callable[[BinaryIO], str],
        source: str,
    ) -> int:
        """Puts a file's bytes at ``target``, copying them first unless they are here.

        Args:
            entry: The file; without a digest it is always copied, and not checked.
            target: Where the file goes, in a directory of the same file system.
            copy: Writes the bytes to an open file and returns their SHA-256; blocks.
            source: Where the bytes come from, for the error's text.

        Returns:
            How many bytes were copied.

        Raises:
            DataLoss: The bytes are not those that ``entry`` promises; nothing is kept.
            OSError: They could not be read or written; nothing is kept.

        """
        if entry.sha256:
            with self._lock:
                if self.has(entry):
                    os.link(self._folder / entry.sha256, target)
                    return 0
        fd, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=self._folder)
        temporary = Path(name)
        try:
            with os.fdopen(fd, "wb") as file:
                digest = copy(file)
                file.flush()
                os.fsync(file.fileno())
            if entry.sha256 and digest != entry.sha256:
                raise DataLoss(
                    f"{source} does not match the sha256 in its manifest; "
                    "write the version again"
                )
            # Versions share the blob, so nobody may change it.
            os.chmod(temporary, 0o444)
            blob = self._folder / digest
            num_bytes = size_of(temporary)
            with self._lock:
                if self._most_bytes is not None:
                    self._most_bytes += num_bytes
                os.replace(temporary, blob)
                os.link(blob, target)
            return num_bytes
        finally:
            temporary.unlink(missing_ok=True)

    def drop_unlinked(self) -> None:
        """Removes every blob that no directory links to and no copy needs."""
        with self._lock:
            for blob in self._folder.iterdir():
                if blob.name.startswith(TEMPORARY_PREFIX) or blob.name in self._needed:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if blob.stat().st_nlink == 1:
                        blob.unlink()

    def drop(self, names: Collection[str]) -> None:
        """Removes these blobs, even if directories link to them."""
        with self._lock:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

    def names_by_inode(self) -> Mapping[int, str]:
        """Returns the name of each blob by its inode, to find which one a link leads to.

        A blob that is removed meanwhile may be left out.
        """
        names = {}
        for blob in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                names[blob.stat().st_ino] = blob.name
        return names

    def count_bytes(self) -> int:
        """Returns the bytes on disk of all whole blobs. It looks at each blob."""
        with self._lock:
            self._most_bytes = sum(
                size_of(blob)
                for blob in self._folder.iterdir()
                if not blob.name.startswith(TEMPORARY_PREFIX)
            )
            return self._most_bytes

    def held_bytes(self, room_bytes: int) -> int:
        """Returns the bytes on disk of all blobs, or a bound that is within the room.

        It looks at each blob only if they might take more than ``room_bytes``.
        """
        with self._lock:
            most_bytes = self._most_bytes
        if most_bytes is not None and most_bytes <= room_bytes:
            return most_bytes
        return self.count_bytes()


def size_of(path: Path) -> int:
    """Returns a file's size in bytes; 0 if it does not exist or cannot be examined."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
