"""Whether there are inotify watches left."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from sources import watch_limit
from sources.watch_limit import WatchLimit


class FakeLibc:
    """Gives watches until told not to."""

    def __init__(self) -> None:
        self.errno = 0
        self.num_held = 0

    def inotify_init1(self, flags: int) -> int:
        reading, writing = os.pipe()
        os.close(writing)
        return reading

    def inotify_add_watch(self, fd: int, path: bytes, mask: int) -> int:
        if self.errno:
            ctypes.set_errno(self.errno)
            return -1
        self.num_held += 1
        return 7

    def inotify_rm_watch(self, fd: int, watch: int) -> int:
        assert watch == 7
        self.num_held -= 1
        return 0


def test_asking_costs_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reached when the system says so, and of a path that is gone nothing is."""
    libc = FakeLibc()
    monkeypatch.setattr(watch_limit, "_find_libc", lambda: libc)
    limit = WatchLimit()
    for given, is_reached in ((0, False), (errno.ENOSPC, True), (errno.ENOENT, False)):
        libc.errno = given
        assert limit.is_reached(str(tmp_path)) is is_reached
    assert libc.num_held == 0
    limit.close()
    limit.close()


def test_the_system_is_asked_over_and_over(tmp_path: Path) -> None:
    """What it tells of each removal does not pile up."""
    limit = WatchLimit()
    assert not any(limit.is_reached(str(tmp_path)) for _ in range(100))
    assert not limit.is_reached(str(tmp_path / "absent"))
    limit.close()


def test_without_inotify_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other systems have other ways to watch."""
    monkeypatch.setattr(watch_limit, "_find_libc", lambda: None)
    limit = WatchLimit()
    assert not limit.is_reached(str(tmp_path))
    limit.close()
