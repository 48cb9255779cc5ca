"""Which directories inotify watches, and what it reports of them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watchdog.observers.inotify_c import (
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    WatchDescriptor,
)

from sources import watcher as module
from sources.watcher import InotifyWatcher


class Reports:
    """What a watcher reported; tests wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paths: list[str] = []

    def note(self, path: str) -> None:
        with self._changed:
            self._paths.append(path)
            self._changed.notify_all()

    def wait_for(self, *paths: Path) -> None:
        """Waits for reports of these paths, and forgets all."""
        wanted = {str(path) for path in paths}
        with self._changed:
            assert self._changed.wait_for(lambda: wanted <= {*self._paths}, 20), paths
            self._paths.clear()

    def take(self) -> list[str]:
        with self._changed:
            paths, self._paths = self._paths, []
            return paths


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def watcher(reports: Reports) -> Iterator[InotifyWatcher]:
    made = InotifyWatcher()
    made.start(reports.note)
    yield made
    made.close()
    made.close()


def test_a_directory_is_reported_once_when_it_is_new(
    watcher: InotifyWatcher, reports: Reports, tmp_path: Path
) -> None:
    """Something may have changed in it before it was watched, and after it was listed."""
    (tmp_path / "1").mkdir()
    base, folders = str(tmp_path), [str(tmp_path / "1")]
    assert watcher.watch(base, folders)
    assert reports.take() == [base]
    assert watcher.watch(base, folders)
    assert reports.take() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("b"),
        os.utime,
        lambda path: path.chmod(0o640),
        lambda path: path.unlink(),
        lambda path: path.rename(path.parent / "other"),
    ],
    ids=["written", "touched", "chmod", "removed", "renamed"],
)
def test_a_change_in_a_watched_directory_is_reported(
    watcher: InotifyWatcher,
    reports: Reports,
    tmp_path: Path,
    change: Callable[[Path], object],
) -> None:
    """Whatever changes, with the base path that it belongs to."""
    file = tmp_path / "1" / "model.pt"
    file.parent.mkdir()
    file.write_text("a")
    watcher.watch(str(tmp_path), [str(file.parent)])
    assert reports.take() == [str(tmp_path)]
    change(file)
    reports.wait_for(tmp_path)


def test_a_directory_made_anew_is_watched_anew(
    watcher: InotifyWatcher, reports: Reports, tmp_path: Path
) -> None:
    """ext4 gives it the inode of the one that was removed: the kernel knows better."""
    version = tmp_path / "1"
    for name in ("a", "b", "c"):
        version.mkdir()
        watcher.watch(str(version), [])
        reports.wait_for(version)
        (version / name).touch()
        reports.wait_for(version)
        (version / name).unlink()
        version.rmdir()
        reports.wait_for(version)


def test_a_base_path_that_was_replaced_is_not_current(
    watcher: InotifyWatcher, tmp_path: Path
) -> None:
    """Neither a link that turns nor a volume that is mounted raises an event."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    link = tmp_path / "current"
    link.symlink_to("a")
    assert not watcher.is_current(str(link))
    assert watcher.watch(str(link), [])
    assert watcher.is_current(str(link))
    (tmp_path / "new").symlink_to("b")
    (tmp_path / "new").rename(link)
    assert not watcher.is_current(str(link))
    link.unlink()
    assert not watcher.is_current(str(link))
    assert not watcher.watch(str(link), [])


def test_a_directory_with_two_names_is_reported_under_each(
    watcher: InotifyWatcher, reports: Reports, tmp_path: Path
) -> None:
    """Two links to a release are two base paths, and one that ends leaves the other."""
    (tmp_path / "release").mkdir()
    links = [tmp_path / "blue", tmp_path / "green"]
    for link in links:
        link.symlink_to("release")
        assert watcher.watch(str(link), [])
    reports.take()
    (tmp_path / "release" / "1").mkdir()
    reports.wait_for(*links)
    watcher.keep([str(links[0])])
    reports.take()
    (tmp_path / "release" / "2").mkdir()
    reports.wait_for(links[0])
    assert not watcher.is_current(str(links[1]))


def test_a_directory_that_a_repository_has_too_stays_watched(
    watcher: InotifyWatcher, reports: Reports, tmp_path: Path
) -> None:
    """A model that leaves the configuration lies in the directory of models still."""
    model = tmp_path / "digits"
    model.mkdir()
    watcher.watch(str(tmp_path), [str(model)])
    watcher.watch(str(model), [])
    watcher.keep([str(tmp_path)])
    reports.take()
    (model / "1").mkdir()
    reports.wait_for(tmp_path)


def test_without_watches_left_nothing_counts_as_watched(
    watcher: InotifyWatcher,
    reports: Reports,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All programs of a user share them. It is logged once, and tried each time."""
    (tmp_path / "1").mkdir()
    add = InotifyFD.add_callback

    def refuse(inotify: InotifyFD, path: bytes, *rest: Any) -> Any:
        if path != os.fsencode(tmp_path):
            raise OSError(errno.ENOSPC, "inotify watch limit reached")
        return add(inotify, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(InotifyFD, "add_callback", refuse)
        for _ in range(2):
            assert not watcher.watch(str(tmp_path), [str(tmp_path / "1")])
    assert caplog.text.count("instead=polling") == 1
    assert watcher.watch(str(tmp_path), [str(tmp_path / "1")])


def test_what_holds_too_many_directories_is_polled(
    watcher: InotifyWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tree must not take the watches of all others."""
    monkeypatch.setattr(module, "MAX_FOLDERS", 1)
    for name in "12":
        (tmp_path / name).mkdir()
    assert watcher.watch(str(tmp_path), [str(tmp_path / "1")])
    assert not watcher.watch(str(tmp_path), [str(tmp_path / n) for n in "12"])


def test_events_that_were_lost_bring_every_base_path(
    watcher: InotifyWatcher, reports: Reports, tmp_path: Path
) -> None:
    """The kernel says only that its queue was full."""
    watcher.watch(str(tmp_path), [])
    reports.take()
    (inotify,) = (each for each in threading.enumerate() if type(each) is InotifyFD)
    overflow = InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b"")
    inotify.handle_event(overflow)
    assert reports.take() == [str(tmp_path)]


def test_a_directory_that_may_not_be_read_is_not_watched(
    watcher: InotifyWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """watchdog says nothing of it, and its base path is polled."""
    monkeypatch.setattr(InotifyFD, "add_callback", lambda *args: WatchDescriptor(-1))
    assert not watcher.watch(str(tmp_path), [])


def test_a_watcher_that_was_not_started_watches_nothing(tmp_path: Path) -> None:
    """Whoever asks is told to poll."""
    watcher = InotifyWatcher()
    assert not watcher.watch(str(tmp_path), [])
    watcher.keep([])
    watcher.close()
