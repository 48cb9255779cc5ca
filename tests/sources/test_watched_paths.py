"""Which base paths are looked at when something changes, and which again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

import pytest

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.model_repository import ModelRepository
from sources.servable_to_monitor import StoragePath
from tests.present import present
from tests.sources.stepped_source import monitor
from tfs.core.source import connect
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem
from tfs.testing.recording_target import RecordingTarget


class FakeWatcher:
    """A watcher that does as it is told. Confined to the test's threads."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.paths: list[str] = []
        self.told: Callable[[str], None] | None = None
        self.closed = False
        self.watches = threading.Event()

    def start(self, on_change: Callable[[str], None]) -> None:
        if self.refuses:
            raise OSError(24, "inotify instance limit reached")
        self.told = on_change

    def watch(self, path: str, folders: Collection[str]) -> bool:
        self.paths = sorted({*self.paths, path})
        self.watches.set()
        return True

    def keep(self, paths: Iterable[str]) -> None:
        self.paths = [path for path in self.paths if path in set(paths)]

    def is_current(self, path: str) -> bool:
        return path in self.paths

    def close(self) -> None:
        self.closed = True


def started(
    watcher: FakeWatcher, events: bool, watch: bool = True
) -> tuple[FileSystemSource, FakeFileSystem, FakeClock, RecordingTarget[StoragePath]]:
    clock = FakeClock()
    files = FakeFileSystem(clock)
    if not events:
        files.places["/models"] = "/models"
    files.write("/models/digits/1/servable.json")
    source = FileSystemSource(
        FileSystemSourceOptions((monitor(),), poll_wait_s=5, rescan_s=600, watch=watch),
        file_system=files,
        clock=clock,
        watcher=watcher,
    )
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    source.start()
    assert target.wait_for(lambda calls: len(calls) == 1)
    clock.block_until_sleepers(1)
    return source, files, clock, target


@pytest.mark.parametrize(
    ("events", "watch", "watched"),
    [
        (True, True, True),
        (False, True, False),
        (True, False, False),
    ],
)
def test_what_gives_no_events_is_polled(
    events: bool, watch: bool, watched: bool
) -> None:
    """A network mount is looked at every poll_wait_s, a watched path on events."""
    watcher = FakeWatcher()
    source, files, clock, target = started(watcher, events, watch)
    with source:
        assert watcher.paths == (["/models/digits"] if watched else [])
        files.write("/models/digits/2/servable.json")
        if watched:
            calls = files.num_calls
            clock.advance(5)
            clock.block_until_sleepers(1)
            assert files.num_calls == calls
            present(watcher.told)("/models/digits")
        else:
            clock.advance(5)
        assert target.wait_for(lambda calls: len(calls) == 2)
    assert watcher.closed


def test_what_was_looked_at_before_the_start_is_watched_from_then_on() -> None:
    """A server applies its first config before the source's thread runs."""
    watcher, clock = FakeWatcher(), FakeClock()
    files = FakeFileSystem(clock)
    files.write("/models/digits/1/servable.json")
    options = FileSystemSourceOptions(poll_wait_s=5, rescan_s=600)
    source = FileSystemSource(options, file_system=files, clock=clock, watcher=watcher)
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    source.update_config([monitor()])
    assert len(target.calls) == 1
    assert not watcher.paths
    source.start()
    clock.block_until_sleepers(1)
    with source:
        assert watcher.paths == ["/models/digits"]
        clock.advance(5)  # looked at once more: something may have come in between
        clock.block_until_sleepers(1)
        calls = files.num_calls
        clock.advance(5)
        clock.block_until_sleepers(1)
        assert files.num_calls == calls


@pytest.mark.parametrize(
    ("why", "after_s"),
    [
        ("no watch is left", 5),
        ("the watch went astray", 5),
        ("the event was lost", 600),
    ],
)
def test_what_no_event_told_is_found_all_the_same(why: str, after_s: float) -> None:
    """By polling where there are no watches; by the check that comes with poll_wait_s
    where a base path became another directory; else by the look that comes anyway.
    """
    watcher = FakeWatcher(refuses=why == "no watch is left")
    source, files, clock, target = started(watcher, events=True)
    with source:
        files.write("/models/digits/2/servable.json")
        if why == "the watch went astray":
            watcher.paths.clear()
        clock.advance(after_s)
        assert target.wait_for(lambda calls: len(calls) == 2)


@pytest.mark.parametrize("path", ["/models/digits", "/models/digits/2"])
def test_what_could_not_be_read_is_looked_at_soon_again(path: str) -> None:
    """No event tells that permissions were mended, or that a store answers again."""
    watcher = FakeWatcher()
    source, files, clock, target = started(watcher, events=True)
    with source:
        files.write("/models/digits/2/servable.json")
        files.break_path(path, PermissionError(13, "Permission denied"))
        present(watcher.told)("/models/digits")
        clock.advance(1)
        clock.block_until_sleepers(1)
        assert len(target.calls) == 1
        files.break_path(path, None)
        clock.advance(5)
        assert target.wait_for(lambda calls: len(calls) == 2)


def test_the_more_base_paths_are_watched_the_more_rarely_each_is_listed_anyway() -> (
    None
):
    """Listing what no event tells of takes a share of a core that does not grow."""
    watcher, clock, num = FakeWatcher(), FakeClock(), 300
    files = FakeFileSystem(clock)
    files.write("/models/digits/1/servable.json")
    models = tuple(
        monitor(f"m{each}", base_path="/models/digits") for each in range(num)
    )
    options = FileSystemSourceOptions(models, poll_wait_s=1, rescan_s=3)
    source = FileSystemSource(options, file_system=files, clock=clock, watcher=watcher)
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    with source:
        clock.block_until_sleepers(1)
        calls = files.num_calls
        for _ in range(36):  # seconds: four times 0.03 for each of them
            clock.advance(1)
            source.step()
        assert calls < files.num_calls <= 6 * calls


def test_a_repository_that_became_another_directory_is_looked_at() -> None:
    """One that is renamed away and back is served again as soon as it is there."""
    watcher = FakeWatcher()
    clock = FakeClock()
    files = FakeFileSystem(clock)
    files.write("/models/digits/1/servable.json")
    source = FileSystemSource(
        FileSystemSourceOptions(poll_wait_s=5, rescan_s=600),
        file_system=files,
        clock=clock,
        watcher=watcher,
    )
    source.watch_repository(ModelRepository("/models"))
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    with source:
        assert target.wait_for(lambda calls: len(calls) == 1)
        clock.block_until_sleepers(1)
        files.write("/models/other/1/servable.json")
        watcher.paths.clear()
        clock.advance(5)
        assert target.wait_for(lambda calls: calls[-1].name == "other")


def test_events_are_used_as_soon_as_the_system_has_an_instance_again() -> None:
    """Another program may have taken all of them for a while."""
    watcher = FakeWatcher(refuses=True)
    source, files, clock, target = started(watcher, events=True)
    assert target.wait_for(lambda calls: len(calls) == 1)
    clock.block_until_sleepers(1)
    watcher.refuses = False
    clock.advance(5)
    assert watcher.watches.wait(20)
    assert watcher.paths == ["/models/digits"]
    clock.block_until_sleepers(1)
    files.write("/models/digits/2/servable.json")
    present(watcher.told)("/models/digits")
    clock.advance(1)
    assert target.wait_for(lambda calls: len(calls) == 2)
    source.close()
