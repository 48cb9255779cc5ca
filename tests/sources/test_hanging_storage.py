"""Base paths in stores and on mounts that do not answer, beside others that do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.model_repository import ModelRepository
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.storage.file_system import StorageThreads
from sources.storage.version_contents import Contents
from tfs.core.source import connect
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem
from tfs.testing.recording_target import RecordingTarget


class SlowStore:
    """A file system whose stores and mounts answer when the test lets them. Thread-safe.

    Below ``s3://`` and ``/nfs`` everything hangs until ``answers`` is set.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.files = FakeFileSystem(clock)
        self.answers = threading.Event()
        self.is_asked = threading.Event()
        self.num_asked: Counter[str] = Counter()

    def list_directories(self, path: str) -> Sequence[str]:
        return self.files.list_directories(self._ask(path))

    def broken_links(self, path: str) -> Sequence[str]:
        return self.files.broken_links(self._ask(path))

    def is_file(self, path: str) -> bool:
        return self.files.is_file(self._ask(path))

    def contents(self, path: str) -> Contents:
        return self.files.contents(self._ask(path))

    def place(self, path: str) -> str:
        return next((p for p in ("s3://bucket", "/nfs") if path.startswith(p)), "")

    def _ask(self, path: str) -> str:
        if self.place(path):
            self.num_asked[path] += 1
            self.is_asked.set()
            assert self.answers.wait(20)
        return path.removeprefix("s3:/")


@dataclass
class SlowWorld:
    """A source of base paths, some of them in a store that hangs."""

    store: SlowStore
    source: FileSystemSource
    clock: FakeClock
    target: RecordingTarget[StoragePath] = field(default_factory=RecordingTarget)
    looked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        connect(self.source, self.target)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Waits for the source to look until something is so."""
        for _ in range(1000):
            if is_so():
                return
            assert self.looked.acquire(timeout=20)
        pytest.fail("the source looks and looks")


@pytest.fixture
def slow() -> Iterator[SlowWorld]:
    """A model "far" in the store, "mounted" on a mount, and "near" on the disk."""
    clock = FakeClock()
    store = SlowStore(clock)
    for path in ("/bucket/far", "/nfs/mounted", "/models/near"):
        store.files.write(f"{path}/1/servable.json")
    storage = StorageThreads(clock)
    looked = threading.Semaphore(0)
    source = FileSystemSource(
        FileSystemSourceOptions(poll_wait_s=5, watch=False),
        file_system=store,
        clock=clock,
        on_looked=looked.release,
        storage=storage,
    )
    yield SlowWorld(store, source, clock, looked=looked)
    store.answers.set()
    source.close()
    storage.close()


FAR = ServableToMonitor("far", "s3://bucket/far")


MOUNTED = ServableToMonitor("mounted", "/nfs/mounted")


NEAR = ServableToMonitor("near", "/models/near")


def test_what_hangs_holds_up_no_other_base_path(slow: SlowWorld) -> None:
    """What lies on the disk is found and swapped; what hangs is asked once meanwhile."""
    hung = MOUNTED
    slow.source.update_config([hung, NEAR])
    slow.source.start()
    assert slow.store.is_asked.wait(20)
    slow.store.files.write("/models/near/2/servable.json")
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(1)
    assert slow.source.problems() == {}
    assert slow.source.at_hand(hung.name) == ()
    assert not slow.source.wait_applied(slow.clock.now())
    slow.clock.advance(1)
    slow.wait_until(lambda: bool(slow.source.problems()))
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(3)
    assert slow.target.wait_for(lambda calls: len(calls) == 3)
    assert [call.name for call in slow.target.calls] == ["near", hung.name, "near"]
    assert slow.source.problems() == {
        hung.name: (
            f"base path {hung.base_path} of {hung.name} has not answered for 2 s; it is "
            "looked at again as soon as it does",
        )
    }
    assert slow.source.wait_applied(slow.clock.now())  # nobody waits for it
    assert set(slow.store.num_asked.values()) == {1}
    slow.store.answers.set()
    assert slow.target.wait_for(lambda calls: calls[-1].name == hung.name)
    slow.wait_until(lambda: not slow.source.problems())
    assert slow.source.at_hand(hung.name) == (1,)


def test_a_store_has_time_to_import_its_driver(slow: SlowWorld) -> None:
    """That takes seconds on a busy machine, and is no outage."""
    slow.source.update_config([FAR])
    slow.source.start()
    assert slow.store.is_asked.wait(20)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(9)
    assert slow.source.problems() == {}
    slow.clock.advance(1)
    slow.wait_until(lambda: bool(slow.source.problems()))
    assert "has not answered for 10 s" in slow.source.problems()["far"][0]


def test_a_path_that_stops_answering_keeps_what_it_serves(slow: SlowWorld) -> None:
    """Nothing is unloaded because a mount is dead, and it says so."""
    slow.store.answers.set()
    slow.source.update_config([MOUNTED])
    slow.source.start()
    assert slow.target.wait_for(lambda calls: len(calls) == 1)
    assert slow.source.wait_applied()
    slow.store.answers.clear()
    slow.store.is_asked.clear()
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(5)
    assert slow.store.is_asked.wait(20)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(2)
    slow.wait_until(lambda: bool(slow.source.problems()))
    assert slow.target.versions("mounted") == [1]
    assert len(slow.target.calls) == 1


@pytest.mark.parametrize("path", ["s3://bucket", "/nfs"])
def test_a_repository_that_hangs_holds_up_nothing(slow: SlowWorld, path: str) -> None:
    """Its models come when it answers; meanwhile it says what it waits for."""
    found = threading.Event()
    slow.source.watch_repository(ModelRepository(path), lambda _: found.set())
    slow.source.update_config([NEAR])
    slow.source.start()
    assert slow.target.wait_for(lambda calls: len(calls) == 1)
    assert slow.store.is_asked.wait(20)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(2)
    slow.wait_until(lambda: bool(slow.source.repository_problem))
    assert slow.source.repository_problem == (
        f"model repository {path} has not answered for 2 s; it is looked at again as "
        "soon as it does"
    )
    assert slow.store.num_asked == {path: 1}
    slow.store.answers.set()
    assert found.wait(20)
    assert slow.source.repository_problem == ""


@pytest.mark.parametrize("path", ["s3://bucket", "/models"])
def test_a_look_that_raises_is_over(slow: SlowWorld, path: str) -> None:
    """Whatever a driver raises, on whichever thread, is told; the next look is believed."""
    slow.store.answers.set()
    where = path.removeprefix("s3:/")
    slow.store.files.break_path(where, RuntimeError("no credentials"))
    found = threading.Event()
    slow.source.watch_repository(ModelRepository(path), lambda _: found.set())
    slow.source.start()
    slow.wait_until(lambda: bool(slow.source.repository_problem))
    assert slow.source.repository_problem == (
        f"cannot list model repository {path}: no credentials"
    )
    slow.store.files.break_path(where, None)
    slow.clock.block_until_sleepers(1)
    slow.clock.advance(5)
    assert found.wait(20)
    assert slow.source.repository_problem == ""


def test_a_look_that_began_under_another_configuration_is_not_followed(
    slow: SlowWorld,
) -> None:
    """What counts is the base path that is configured when it ends."""
    slow.source.update_config([ServableToMonitor("far", "s3://bucket/none")])
    slow.source.start()
    assert slow.store.is_asked.wait(20)
    slow.source.update_config([FAR])
    slow.store.answers.set()
    assert slow.target.wait_for(lambda calls: len(calls) == 1)
    assert [data.id.version for data in slow.target.calls[0].versions] == [1]
    assert slow.source.wait_applied()


def test_a_model_that_left_while_it_was_looked_at_is_not_told(
    slow: SlowWorld,
) -> None:
    """Nobody aspires what is not configured any more, and nothing spins for it."""
    slow.source.update_config([FAR])
    assert slow.store.is_asked.wait(20)
    slow.source.update_config([])
    slow.store.answers.set()
    while slow.source.step() is not None:
        pass  # until the look has ended
    assert [list(call.versions) for call in slow.target.calls] == [[]]
