"""Caches that servers left behind which were killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sources.remote.cache import (
    VersionCache,
    VersionCacheOptions,
    remove_left_caches,
)
from sources.remote.storage import RemoteFileSystem

LOCK = "lock"
LATER_S = 3600.0


def cache(root: Path) -> VersionCache:
    """Returns an open cache."""
    opened = VersionCache(VersionCacheOptions(str(root)), RemoteFileSystem())
    opened.open()
    return opened


def clear(parent: Path, after_s: float = LATER_S) -> None:
    """Clears a directory so long after the locks in it were made."""
    locks = [each.stat().st_mtime for each in parent.glob(f"*/{LOCK}")]
    remove_left_caches(str(parent), "cache-", max(locks, default=0.0) + after_s)


def test_the_cache_of_a_server_that_is_gone_is_removed(tmp_path: Path) -> None:
    """A killed server's copies would fill the disk for ever."""
    root = tmp_path / "cache-1"
    cache(root).close()  # as the system does for a process that is killed
    (root / "versions" / "bytes").write_bytes(b"weights")
    clear(tmp_path)
    assert not root.exists()


def test_the_cache_of_a_server_that_runs_stays(tmp_path: Path) -> None:
    """Its lock says that it is in use, however old it is."""
    root = tmp_path / "cache-1"
    used = cache(root)
    clear(tmp_path)
    assert root.is_dir()
    used.close()
    clear(tmp_path, after_s=1.0)  # it may just be opening
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
    clear(tmp_path)
    assert os.path.lexists(root)
    assert (other / LOCK).exists()
