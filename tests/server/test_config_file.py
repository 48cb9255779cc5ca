"""tfs.server.config_file."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from tfs.core.clock import MonotonicClock
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.server.config_file import ConfigFileWatch, read_config_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "models.config"
    file.write_text("one")
    return file


def watch(path: Path, seen: list[str]) -> ConfigFileWatch:
    return ConfigFileWatch(str(path), "one", seen.append, MonotonicClock(), 0.01)


def test_an_unchanged_file_is_not_applied(path: Path) -> None:
    """What was applied at the start is not applied again."""
    seen: list[str] = []
    assert not watch(path, seen).poll()
    assert seen == []


def test_new_bytes_are_applied_once(path: Path) -> None:
    """An edit reaches the server once, whatever the number of looks."""
    seen: list[str] = []
    watched = watch(path, seen)
    path.write_text("two")
    assert watched.poll()
    assert not watched.poll()
    assert seen == ["two"]


def test_a_touched_file_is_not_applied(path: Path) -> None:
    """The bytes decide, not the time stamp."""
    seen: list[str] = []
    watched = watch(path, seen)
    watched.poll()
    os.utime(path, ns=(1, 1))
    assert not watched.poll()
    assert seen == []


def test_a_replaced_file_is_noticed(path: Path) -> None:
    """Editors and config maps rename a new file over the old one."""
    seen: list[str] = []
    watched = watch(path, seen)
    other = path.with_suffix(".new")
    other.write_text("two")
    other.rename(path)
    assert watched.poll()
    assert seen == ["two"]


def test_a_missing_file_is_logged_once_and_seen_when_back(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While the file is away nothing changes; it counts again when it is back."""
    seen: list[str] = []
    watched = watch(path, seen)
    path.unlink()
    with caplog.at_level(logging.ERROR):
        assert not watched.poll()
        assert not watched.poll()
    assert len(caplog.records) == 1
    path.write_text("two")
    assert watched.poll()
    assert seen == ["two"]


def test_the_thread_applies_an_edit(path: Path) -> None:
    """Started, the watch needs nobody to poll it, and it ends when closed."""
    applied = threading.Event()
    watched = ConfigFileWatch(
        str(path), "one", lambda _: applied.set(), MonotonicClock(), 0.01
    )
    watched.start()
    path.write_text("two")
    assert applied.wait(10)
    watched.close()
    watched.close()


def test_an_unreadable_file_is_explained(tmp_path: Path) -> None:
    """A path that cannot be read says so with the reason."""
    with pytest.raises(FailedPrecondition, match="No such file"):
        read_config_file(str(tmp_path / "absent"))


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    """A config is text."""
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="UTF-8"):
        read_config_file(str(file))
