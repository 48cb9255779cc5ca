"""Blobs: one per content, checked, and removed when nothing links to them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from sources.blob_store import BlobStore
from tfs.core.errors import DataLoss
from tfs.core.manifest import FileEntry


def entry_of(data: bytes) -> FileEntry:
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def copier(data: bytes) -> Callable[[BinaryIO], str]:
    """Returns what copies these bytes."""

    def copy(to: BinaryIO) -> str:
        to.write(data)
        return hashlib.sha256(data).hexdigest()

    return copy


def refuse(_: BinaryIO) -> str:
    raise AssertionError("copied again")


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    folder = tmp_path / "blobs"
    folder.mkdir()
    return BlobStore(folder)


def test_equal_bytes_are_copied_once(blobs: BlobStore, tmp_path: Path) -> None:
    """A second link to the same content needs no source."""
    entry = entry_of(b"weights")
    assert blobs.missing_bytes([entry, entry]) == 7
    blobs.link(entry, tmp_path / "a", copier(b"weights"), "s3://a")
    blobs.link(entry, tmp_path / "b", refuse, "s3://b")
    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert blobs.has(entry)
    assert blobs.missing_bytes([entry]) == 0
    assert blobs.count_bytes() == 7


def test_bytes_that_differ_from_the_promise_are_not_kept(
    blobs: BlobStore, tmp_path: Path
) -> None:
    """The error names the source; neither a blob nor a link is left."""
    with pytest.raises(DataLoss, match="s3://a does not match"):
        blobs.link(entry_of(b"good"), tmp_path / "a", copier(b"evil"), "s3://a")
    assert not (tmp_path / "a").exists()
    assert blobs.count_bytes() == 0


def test_only_blobs_that_nothing_links_to_or_needs_are_removed(
    blobs: BlobStore, tmp_path: Path
) -> None:
    """A copy in progress keeps what it is about to link."""
    data = {name: name.encode() for name in ("linked", "needed", "orphan")}
    for name, content in data.items():
        blobs.link(entry_of(content), tmp_path / name, copier(content), name)
    for name in ("needed", "orphan"):
        (tmp_path / name).unlink()
    needed = [entry_of(data["needed"]).sha256]
    blobs.keep(needed)
    blobs.drop_unlinked()
    here = [name for name, content in data.items() if blobs.has(entry_of(content))]
    assert here == ["linked", "needed"]
    blobs.release(needed)
    blobs.drop_unlinked()
    assert not blobs.has(entry_of(data["needed"]))


def test_blobs_are_counted_only_when_they_might_not_fit(
    blobs: BlobStore, tmp_path: Path
) -> None:
    """Within the room the bound is enough; beyond it every blob is looked at."""
    assert blobs.count_bytes() == 0
    blobs.link(entry_of(b"12345"), tmp_path / "a", copier(b"12345"), "s3://a")
    (tmp_path / "a").unlink()
    blobs.drop_unlinked()
    assert blobs.held_bytes(room_bytes=5) == 5
    assert blobs.held_bytes(room_bytes=4) == 0
