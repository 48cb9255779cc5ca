"""sources.left_caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sources.left_caches import left_caches, remove_left_cache
from sources.remote_storage import RemoteFileSystem
from sources.version_cache import LOCK, VersionCache, VersionCacheOptions

LATER_S = 3600.0


def cache(root: Path) -> VersionCache:
    """Returns an open cache."""
    opened = VersionCache(VersionCacheOptions(str(root)), RemoteFileSystem())
    opened.open()
    return opened


def lock_s(root: Path) -> float:
    """Returns when a cache was opened."""
    return (root / LOCK).stat().st_mtime


def test_the_cache_of_a_server_that_is_gone_is_removed(tmp_path: Path) -> None:
    """A killed server's copies would fill the disk for ever."""
    root = tmp_path / "cache-1"
    cache(root).close()  # as the system does for a process that is killed
    (root / "blobs" / "bytes").write_bytes(b"weights")
    assert left_caches(str(tmp_path), "cache-") == [str(root)]
    assert remove_left_cache(str(root), lock_s(root) + LATER_S)
    assert not root.exists()


def test_the_cache_of_a_server_that_runs_stays(tmp_path: Path) -> None:
    """Its lock says that it is in use, however old it is."""
    root = tmp_path / "cache-1"
    used = cache(root)
    assert not remove_left_cache(str(root), lock_s(root) + LATER_S)
    used.close()
    assert not remove_left_cache(
        str(root), lock_s(root) + 1.0
    )  # it may just be opening
    assert root.is_dir()


@pytest.mark.parametrize("what", ["link", "file", "no lock", "link for lock", "other"])
def test_what_is_no_cache_of_ours_stays(tmp_path: Path, what: str) -> None:
    """Anybody may put anything into a directory for temporary files."""
    other = tmp_path / "precious"
    other.mkdir()
    (other / LOCK).touch()
    root = tmp_path / ("else-1" if what == "other" else "cache-1")
    match what:
        case "link":
            root.symlink_to(other)
        case "file":
            root.touch()
        case _:
            root.mkdir()
            (root / "data").touch()
    if what == "link for lock":
        (root / LOCK).symlink_to(other / LOCK)
    for found in left_caches(str(tmp_path), "cache-"):
        assert not remove_left_cache(found, lock_s(other) + LATER_S)
    assert os.path.lexists(root)
    assert (other / LOCK).exists()
