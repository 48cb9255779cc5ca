"""Which directories are watched, and what happens when they cannot be."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from watchdog.observers.inotify_move_event_grouper import InotifyMoveEventGrouper

from sources import directory_watcher
from sources.directory_watcher import (
    SHARED_FOLDER_FROM,
    WatchdogWatcher,
    choose_roots,
)
from sources.watch_limit import WatchLimit


def test_a_few_base_paths_are_watched_themselves() -> None:
    """A folder with unrelated things in it is not watched for two models."""
    assert choose_roots(["/m/a", "/m/b"]) == {"/m/a": "/m/a", "/m/b": "/m/b"}


def test_many_base_paths_in_a_folder_are_watched_through_it() -> None:
    """Each watch costs a thread, so siblings share one."""
    paths = [f"/m/{index}" for index in range(SHARED_FOLDER_FROM)]
    assert set(choose_roots([*paths, "/other/x"]).values()) == {"/m", "/other/x"}


def test_a_link_is_watched_itself() -> None:
    """What lies behind a link raises no event in the link's folder."""
    paths = [f"/m/{index}" for index in range(SHARED_FOLDER_FROM + 1)]
    roots = choose_roots(paths, lambda path: path == "/m/0")
    assert roots["/m/0"] == "/m/0"
    assert roots["/m/1"] == "/m"


def test_the_root_is_never_watched_for_its_children() -> None:
    """Watching everything would take every watch there is."""
    paths = [f"/{index}" for index in range(SHARED_FOLDER_FROM)]
    assert set(choose_roots(paths).values()) == set(paths)


def test_a_path_below_a_watched_one_needs_no_watch() -> None:
    """The models of a repository are watched through the repository."""
    assert choose_roots(["/m", "/m/a"]) == {"/m": "/m", "/m/a": "/m"}


@pytest.fixture
def watcher(tmp_path: Path) -> WatchdogWatcher:
    return WatchdogWatcher()


def test_what_does_not_exist_is_watched_once_it_does(
    watcher: WatchdogWatcher, tmp_path: Path
) -> None:
    """ensure says truthfully whether there is a watch, and makes up for lost time."""
    path = tmp_path / "late"
    watcher.start(lambda _: None)
    try:
        watcher.watch([str(path)])
        assert not watcher.ensure(str(path))
        path.mkdir()
        assert not watcher.is_current(str(path))
        assert watcher.ensure(str(path))
        assert watcher.is_current(str(path))
        path.rename(tmp_path / "old")
        path.mkdir()
        assert not watcher.is_current(str(path))
        assert watcher.ensure(str(path))
        watcher.watch([])
        assert not watcher.ensure(str(path))
    finally:
        watcher.close()
        watcher.close()


class Told:
    """What a watcher told; tests wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paths: set[str] = set()

    def note(self, path: str) -> None:
        with self._changed:
            self._paths.add(path)
            self._changed.notify_all()

    def wait_for(self, *paths: Path) -> None:
        wanted = {str(path) for path in paths}
        with self._changed:
            assert self._changed.wait_for(lambda: wanted <= self._paths, 20), paths

    @property
    def paths(self) -> frozenset[str]:
        with self._changed:
            return frozenset(self._paths)


@pytest.mark.parametrize("with_link", [False, True])
def test_a_directory_made_anew_is_watched_anew(
    watcher: WatchdogWatcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_link: bool,
) -> None:
    """ext4 gives it the inode of the one that was removed: nothing tells them apart."""
    path, told = tmp_path / "model", Told()
    paths = [path, tmp_path / "link"] if with_link else [path]
    path.mkdir()
    if with_link:
        paths[1].symlink_to(path)
    monkeypatch.setattr(
        directory_watcher, "_identity", lambda p: (1, 1) if Path(p).is_dir() else None
    )
    watcher.start(told.note)
    try:
        watcher.watch(map(str, paths))
        path.rmdir()
        told.wait_for(*paths)
        path.mkdir()
        assert not any(watcher.is_current(str(each)) for each in paths)
        assert all(watcher.ensure(str(each)) for each in paths)
        assert all(watcher.is_current(str(each)) for each in paths)
        (path / "1").mkdir()
        told.wait_for(*(each / "1" for each in paths))
    finally:
        watcher.close()


def test_a_directory_that_others_link_to_is_followed_when_it_is_replaced(
    watcher: WatchdogWatcher, tmp_path: Path
) -> None:
    """The watch that they share is of no use to any of them then."""
    path, link, told = tmp_path / "model", tmp_path / "link", Told()
    path.mkdir()
    link.symlink_to(path)
    watcher.start(told.note)
    try:
        watcher.watch(map(str, [path, link]))
        path.rename(tmp_path / "old")
        path.mkdir()
        assert all(watcher.ensure(str(each)) for each in (path, link))
        (path / "1").mkdir()
        told.wait_for(path / "1", link / "1")
    finally:
        watcher.close()


def test_a_link_that_turns_elsewhere_leaves_others_their_watch(
    watcher: WatchdogWatcher, tmp_path: Path
) -> None:
    """What it led to is told under its own name, and under the link's no more."""
    path, other, link, told = *(tmp_path / n for n in ("a", "b", "link")), Told()
    path.mkdir()
    other.mkdir()
    link.symlink_to(path)
    watcher.start(told.note)
    try:
        watcher.watch(map(str, [path, link]))
        (tmp_path / "next").symlink_to(other)
        (tmp_path / "next").rename(link)
        assert watcher.is_current(str(path))
        assert not watcher.is_current(str(link))
        assert watcher.ensure(str(link))
        (path / "1").mkdir()
        (other / "2").mkdir()
        told.wait_for(path / "1", link / "2")
        assert str(link / "1") not in told.paths
    finally:
        watcher.close()


def test_another_volume_is_another_directory(
    watcher: WatchdogWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roots of two volumes have the same inode, as a rule."""
    mount = tmp_path / "mount"
    mount.mkdir()
    stat = os.stat

    def other_volume(path: str, **_: object) -> os.stat_result:
        fields = list(stat(path))
        fields[2] += str(path) == str(mount)  # st_dev
        return os.stat_result(fields)

    watcher.start(lambda _: None)
    try:
        watcher.watch([str(mount)])
        assert watcher.is_current(str(mount))
        monkeypatch.setattr(os, "stat", other_volume)
        assert not watcher.is_current(str(mount))
    finally:
        monkeypatch.undo()
        watcher.close()


def test_a_change_is_told_under_every_name_of_its_directory(
    watcher: WatchdogWatcher, tmp_path: Path
) -> None:
    """A base path, and links to it that are base paths too; also when one has left."""
    plain, links = tmp_path / "plain", [tmp_path / name for name in "ab"]
    plain.mkdir()
    for link in links:
        link.symlink_to(plain)
    told = Told()
    watcher.start(told.note)
    try:
        watcher.watch(map(str, [plain, *links]))
        (plain / "1").mkdir()
        told.wait_for(plain / "1", *(link / "1" for link in links))
        watcher.watch(map(str, [plain, links[0]]))
        (plain / "2").mkdir()
        told.wait_for(plain / "2", links[0] / "2")
    finally:
        watcher.close()


@pytest.mark.parametrize(
    "change",
    [lambda path: os.utime(path), lambda path: path.chmod(0o640)],
    ids=["touch", "chmod"],
)
def test_a_file_that_is_touched_is_told(
    watcher: WatchdogWatcher, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Times and permissions are changes: a version is tried again for them."""
    file = tmp_path / "1" / "servable.json"
    file.parent.mkdir()
    file.write_text("{}")
    told = threading.Event()
    watcher.start(lambda path: told.set() if path == str(file) else None)
    try:
        watcher.watch([str(tmp_path)])
        change(file)
        assert told.wait(20)
    finally:
        watcher.close()


def test_beyond_the_limit_nothing_is_watched(
    watcher: WatchdogWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More directories than watches: the rest is polled."""
    monkeypatch.setattr(directory_watcher, "MAX_WATCHES", 1)
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        Path(path).mkdir()
    watcher.start(lambda _: None)
    try:
        watcher.watch(paths)
        assert [watcher.ensure(path) for path in paths] == [True, False]
    finally:
        watcher.close()


def test_a_tree_that_is_too_large_is_polled(
    watcher: WatchdogWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base path that is "/" by mistake costs no watch for every directory there is."""
    monkeypatch.setattr(directory_watcher, "MAX_DIRECTORIES", 2)
    large, small = tmp_path / "large", tmp_path / "small"
    for folder in (large / "1", large / "1" / "2", large / "3", small / "1"):
        folder.mkdir(parents=True, exist_ok=True)
    (small / "link").symlink_to(large)
    watcher.start(lambda _: None)
    try:
        watcher.watch([str(large), str(small)])
        assert not watcher.ensure(str(large))
        assert watcher.ensure(str(small))
        assert not watcher.is_current(str(large))
    finally:
        watcher.close()


class FakeLimit(WatchLimit):
    """Is reached where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool] = []

    def is_reached(self, path: str) -> bool:
        return self.answers.pop(0) if self.answers else super().is_reached(path)


def test_without_watches_left_nothing_counts_as_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is polled, which is logged once, and watched when there are some again."""
    limit, told = FakeLimit(), Told()
    watcher = WatchdogWatcher(limit)
    limit.answers = [True] * 3
    watcher.start(told.note)
    try:
        watcher.watch([str(tmp_path)])
        assert [watcher.ensure(str(tmp_path)) for _ in range(3)] == [False, False, True]
        assert caplog.text.count("no inotify watches left") == 1
        (tmp_path / "1").mkdir()
        told.wait_for(tmp_path / "1")
    finally:
        watcher.close()


@pytest.mark.parametrize("when", ["while it was set", "later"])
def test_a_tree_that_is_watched_in_part_is_polled_until_it_is_whole(
    tmp_path: Path, when: str
) -> None:
    """Watches ran out on the way down, or before a directory appeared: nobody says so."""
    limit, told = FakeLimit(), Told()
    watcher = WatchdogWatcher(limit)
    path = str(tmp_path)
    watcher.start(told.note)
    try:
        limit.answers = [False, True] if when == "while it was set" else []
        watcher.watch([path])
        if when == "later":
            assert watcher.is_current(path)
            limit.answers = [True]
            assert not watcher.ensure(path)
        assert not watcher.is_current(path)
        limit.answers = [True]
        assert not watcher.ensure(path)
        assert watcher.ensure(path)
        assert watcher.is_current(path)
        (tmp_path / "1").mkdir()
        told.wait_for(tmp_path / "1")
    finally:
        watcher.close()


def test_a_watcher_that_never_started_watches_nothing(
    watcher: WatchdogWatcher, tmp_path: Path
) -> None:
    """Without watchdog's threads there are no events, and nothing fails."""
    watcher.watch([str(tmp_path)])
    assert not watcher.ensure(str(tmp_path))
    watcher.close()


def test_renames_are_told_without_waiting_for_their_other_half(
    watcher: WatchdogWatcher,
) -> None:
    """Publishing a version is a rename: watchdog's half second of pairing is cut."""
    watcher.start(lambda _: None)
    watcher.close()
    assert InotifyMoveEventGrouper.delay == directory_watcher.PAIRING_S
