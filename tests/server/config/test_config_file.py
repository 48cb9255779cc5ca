"""tfs.server.config.config_file."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from tfs.core.clock import MonotonicClock
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.server.config import config_file
from tfs.server.config.config_file import ConfigFileWatch, read_config_file
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


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


def test_edits_within_one_tick_of_the_file_systems_clock_are_noticed(
    path: Path,
) -> None:
    """An edit that leaves size, inode and times as they were is still an edit."""
    seen: list[str] = []
    clock = FakeClock()
    watched = ConfigFileWatch(str(path), "one", seen.append, clock, 1.0)
    path.write_text("two")
    stamp = os.stat(path)
    assert watched.poll()
    path.write_text("six")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    clock.advance(1)
    assert watched.poll()
    assert seen == ["two", "six"]


def test_a_config_map_that_moves_its_link_is_noticed(tmp_path: Path) -> None:
    """Kubernetes swaps a link above the file; the file's own path is a link too."""
    for name, text in (("..1", "one"), ("..2", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "models.config").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "models.config"
    path.symlink_to("..data/models.config")
    seen: list[str] = []
    watched = watch(path, seen)
    assert not watched.poll()
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert watched.poll()
    assert seen == ["two"]


def test_a_pipe_in_the_files_place_does_not_block(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be read again without waiting is told, and left alone."""
    seen: list[str] = []
    watched = watch(path, seen)
    path.unlink()
    os.mkfifo(path)
    with caplog.at_level(logging.ERROR):
        assert not watched.poll()
    assert "is not a regular file" in caplog.text


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


def test_whoever_asks_is_told_that_the_file_cannot_be_read(path: Path) -> None:
    """Status shows it for as long as it holds, and no longer."""
    told: list[str] = []
    watched = ConfigFileWatch(
        str(path), "one", lambda _: None, FakeClock(), 1.0, told.append
    )
    path.unlink()
    watched.poll()
    watched.poll()
    path.write_text("one")
    watched.poll()
    assert len(told) == 2
    assert "No such file" in told[0]
    assert told[1] == ""


@pytest.mark.parametrize("is_asked", [False, True])
def test_the_thread_applies_an_edit(path: Path, is_asked: bool) -> None:
    """Started, the watch needs nobody to poll it, and ends when closed; a look that is
    asked for does not wait for the end of a pause.
    """
    applied = threading.Event()
    pause_s = 3600.0 if is_asked else 0.01
    watched = ConfigFileWatch(
        str(path), "one", lambda _: applied.set(), MonotonicClock(), pause_s
    )
    watched.start()
    path.write_text("two")
    if is_asked:
        watched.look_soon()
    assert applied.wait(10)
    watched.close()
    watched.close()


def test_a_mount_that_hangs_does_not_hold_up_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is told to end ends, whatever its config file lies on."""
    looking, mended = threading.Event(), threading.Event()

    def hang(path: str) -> None:
        looking.set()
        mended.wait()

    monkeypatch.setattr(config_file, "look_at_config_file", hang)
    monkeypatch.setattr(config_file, "_LONGEST_CLOSE_S", 0.0)
    watched = watch(path, [])
    watched.start()
    assert looking.wait(PATIENCE_S)
    try:
        watched.close()
    finally:
        mended.set()
    assert "event=config_file_hangs" in caplog.text


def test_an_unreadable_file_is_explained(tmp_path: Path) -> None:
    """A path that cannot be read says so with the reason."""
    with pytest.raises(FailedPrecondition, match="No such file"):
        read_config_file(str(tmp_path / "absent"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    """Files that Windows editors saved start unchanged, line ends included."""
    file = tmp_path / "models.config"
    file.write_bytes(b"\xef\xbb\xbfmodel_config_list {\r\n}\r\n")
    assert read_config_file(str(file)) == "model_config_list {\r\n}\r\n"


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    """A config is text: a file that is not is refused by name."""
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="UTF-8"):
        read_config_file(str(file))
