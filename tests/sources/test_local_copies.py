"""Tests of the copies on this machine: use, order and bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from sources.blob_store import BlobStore
from sources.copy_records import CopyRecords
from sources.local_copies import LocalCopies
from tfs.core.errors import ResourceExhausted
from tfs.core.manifest import FileEntry
from tfs.core.version_directory import TEMPORARY_PREFIX


class Cache:
    """Copies of ten bytes each, of which three fit."""

    def __init__(self, root: Path) -> None:
        for name in ("blobs", "versions", "known"):
            (root / name).mkdir()
        self.root = root
        self.blobs = BlobStore(root / "blobs")
        records = CopyRecords(root / "known")
        self.copies = LocalCopies(root / "versions", self.blobs, records, 30)

    def make(self, key: str) -> None:
        """Makes a copy that nothing uses."""
        self.copies.use(key)
        made = self.root / "versions" / f"{TEMPORARY_PREFIX}{key}"
        made.mkdir()
        with self.copies.room_for(10, (), "s3://b/m/1") as arrived:
            entry = FileEntry(10, "")
            written = self.blobs.link(
                entry, made / "file", lambda to: _write(to, key), key
            )
            arrived(written)
            self.copies.add(made, key)
        self.copies.unuse(key)

    def names(self) -> list[str]:
        """Returns the names of the copies, without any that is still being made."""
        found = os.listdir(self.root / "versions")
        return sorted(n for n in found if not n.startswith(TEMPORARY_PREFIX))


def _write(to: BinaryIO, key: str) -> str:
    to.write(key.encode().ljust(10))
    return key * 64


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_the_longest_unused_goes_first(cache: Cache) -> None:
    """Using a copy again counts, however long it has been there."""
    for key in "abc":
        cache.make(key)
    cache.copies.use("a")
    cache.copies.unuse("a")
    cache.make("d")
    assert cache.names() == ["a", "c", "d"]


def test_what_is_used_stays_and_its_bytes_are_told(cache: Cache) -> None:
    """A copy that does not fit beside what is in use is refused, with nothing removed."""
    for key in "abc":
        cache.make(key)
        cache.copies.use(key)
    with pytest.raises(ResourceExhausted, match="holds 30 that are in use, of 30"):
        cache.make("d")
    assert cache.names() == ["a", "b", "c"]
    cache.copies.unuse("b")
    assert cache.copies.evict_unused()
    assert cache.copies.size_bytes == 20


def test_room_is_free_again_when_its_copy_fails(cache: Cache) -> None:
    """What did not arrive is not held."""
    with (
        pytest.raises(OSError, match="gone"),
        cache.copies.room_for(30, (), "s3://b/m/1"),
    ):
        raise OSError("gone")
    for key in "abc":
        cache.make(key)
    assert cache.names() == ["a", "b", "c"]
