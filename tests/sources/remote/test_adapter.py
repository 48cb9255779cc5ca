"""Remote versions become local before anybody loads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sources.remote.adapter import FetchingSourceAdapter
from sources.remote.cache import VersionCache, VersionCacheOptions
from sources.storage_path import StoragePath
from tests.core.conformance import ADAPTER_CHECKS, AdapterCheck, check_name
from tests.sources.remote.fake_remote import FakeRemote
from tfs.core.errors import NotFound
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId
from tfs.testing.fake_clock import FakeClock
from tfs.testing.held_executor import HeldExecutor
from tfs.testing.recording_target import RecordingTarget


@dataclass
class World:
    """An adapter over a fake store, with its pool in the test's hand."""

    tmp_path: Path
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        self.remote = FakeRemote()
        options = VersionCacheOptions(str(self.tmp_path), self.max_bytes)
        self.cache = VersionCache(options, self.remote)
        self.executor = HeldExecutor()
        self.clock = FakeClock()
        self.used: set[int] = set()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.adapter = FetchingSourceAdapter(
            self.cache,
            lambda _, copy: self.executor.submit(copy),
            self.clock,
            schedule=lambda when_s, fn: self.timers.append((when_s, fn)),
            is_used=lambda servable_id: servable_id.version in self.used,
        )
        self.target: RecordingTarget[StoragePath] = RecordingTarget()
        self.adapter.set_aspired_versions_callback(
            self.target.aspired_versions_callback()
        )

    def publish(self, version: int, data: bytes = b"") -> ServableData[StoragePath]:
        payload = data or b"weights %d" % version
        path = self.remote.publish(f"s3://b/m/{version}", model_pt=payload)
        return ServableData(ServableId("m", version), path)

    def aspire(self, *versions: ServableData[StoragePath]) -> None:
        self.adapter.aspired_versions_callback()(
            AspiredVersions("m", tuple(versions), "why")
        )

    def advance(self, duration_s: float) -> None:
        """Lets time pass, and what is due be tried again."""
        self.clock.advance(duration_s)
        due = [fn for when_s, fn in self.timers if when_s <= self.clock.now()]
        self.timers = [each for each in self.timers if each[0] > self.clock.now()]
        for fn in due:
            fn()
        self.executor.run_held()

    def deploy(self, version: int, data: bytes = b"") -> None:
        """Aspires a version of ten bytes alone, and copies it."""
        self.aspire(self.publish(version, data or b"%10d" % version))
        self.executor.run_held()
        assert self.last() == [f"{version}"]

    def last(self) -> list[str]:
        """Returns "version" or "version CODE" for each item told last."""
        call = self.target.calls[-1]
        return [
            f"{d.id.version} {d.error.code.name}" if d.error else f"{d.id.version}"
            for d in call.versions
        ]

    def close(self) -> None:
        self.adapter.close()
        self.cache.close()


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_a_version_is_handed_on_once_it_is_here(w: World) -> None:
    """A version is handed on, with a local path, only when its copy is whole."""
    w.aspire(w.publish(1))
    assert w.last() == []
    w.executor.run_held()
    assert w.last() == ["1"]
    payload = w.target.calls[-1].versions[0].payload
    assert payload is not None
    assert (Path(payload.path) / "model.pt").read_bytes() == b"weights 1"
    assert w.target.calls[-1].reason == "why"


def test_what_is_copied_is_told_with_its_place_and_time(w: World) -> None:
    """A store that stopped answering in the middle would show nothing at all."""
    version = w.publish(1)
    w.aspire(version)
    w.clock.advance(34)
    assert w.adapter.on_their_way("m") == [
        "version 1 is on its way here from s3://b/m/1, for 34 s now"
    ]
    w.executor.run_held()
    assert w.adapter.on_their_way("m") == w.adapter.on_their_way("other") == []


def test_the_old_version_stays_while_the_new_one_is_copied(w: World) -> None:
    """A swap never passes through a set without any version."""
    w.aspire(w.publish(1))
    w.executor.run_held()
    w.aspire(w.publish(2))
    assert w.last() == ["1"]
    w.executor.run_held()
    assert w.last() == ["2"]


def test_who_asks_learns_whether_versions_are_on_their_way(w: World) -> None:
    """Nobody takes a version for missing that is being copied, or just being told."""
    adapter = FetchingSourceAdapter(
        w.cache, lambda _, copy: w.executor.submit(copy), w.clock
    )
    told: list[bool] = []
    adapter.set_aspired_versions_callback(
        lambda aspired: told.append(bool(aspired.versions) and adapter.is_copying("m"))
    )
    assert not adapter.is_copying("m")
    adapter.aspired_versions_callback()(AspiredVersions("m", (w.publish(1),), "why"))
    assert adapter.is_copying("m")
    w.executor.run_held()
    assert told == [False, True]
    assert not adapter.is_copying("m")


def test_what_is_here_already_does_not_wait_for_the_rest(w: World) -> None:
    """Each of several versions is handed on when it arrives."""
    one, two = w.publish(1), w.publish(2)
    w.aspire(one)
    w.executor.run_held()
    w.aspire(two, one)
    assert w.last() == ["1"]
    w.executor.run_held()
    assert w.last() == ["2", "1"]


def test_local_paths_and_errors_pass_at_once(w: World) -> None:
    """Only URLs are copied; a file URL is a path in other words."""
    local = ServableData(ServableId("m", 1), StoragePath("/m/1", "f", "p"))
    url = ServableData(ServableId("m", 2), StoragePath("file:///m/2"))
    failed: ServableData[StoragePath]
    failed = ServableData(ServableId("m", 3), None, NotFound("gone"))
    w.aspire(local, url, failed)
    versions = w.target.calls[-1].versions
    assert [d.payload.path if d.payload else None for d in versions] == [
        "/m/1",
        "/m/2",
        None,
    ]
    assert versions[0] == local
    assert versions[2].error == failed.error
    assert w.executor.held == []


def test_a_failed_copy_is_its_versions_error(w: World) -> None:
    """The error shows, the other versions are served, a later repeat tries again."""
    one, two = w.publish(1), w.publish(2)
    good = w.remote.files["s3://b/m/2/model.pt"]
    w.remote.files["s3://b/m/2/model.pt"] = b"damaged"
    w.aspire(one, two)
    w.executor.run_held()
    assert w.last() == ["1", "2 DATA_LOSS"]
    w.remote.files["s3://b/m/2/model.pt"] = good
    w.aspire(one, two)
    assert w.executor.held == []
    w.clock.advance(30)
    w.aspire(one, two)
    assert w.last() == ["1", "2 DATA_LOSS"]
    w.executor.run_held()
    assert w.last() == ["1", "2"]


def test_what_is_damaged_in_the_store_is_copied_ever_less_often(w: World) -> None:
    """Gigabytes that cannot be right need not be taken twice a minute."""
    two = w.publish(2)
    w.remote.files["s3://b/m/2/model.pt"] = b"damaged"
    tried_at_s = []
    for now_s in range(0, 3600, 30):
        w.aspire(two)
        if w.executor.held:
            tried_at_s.append(now_s)
        w.executor.run_held()
        assert w.last() == ["2 DATA_LOSS"]
        w.clock.advance(30)
    assert tried_at_s == [0, 30, 60, 120, 240, 480, 960, 1860, 2760]
    # Written again it is another payload.
    w.aspire(w.publish(2, b"mended").with_payload(StoragePath("s3://b/m/2", "new")))
    w.executor.run_held()
    assert w.last() == ["2"]


def test_a_version_given_up_while_it_is_copied_is_not_told(w: World) -> None:
    """What is wanted when the copy ends decides."""
    one, two = w.publish(1), w.publish(2)
    w.aspire(two)
    w.aspire(one)
    w.executor.run_held()
    assert w.last() == ["1"]
    w.aspire()
    assert w.last() == []


def test_a_repeated_set_copies_nothing_again(w: World) -> None:
    """The same payload gives the same local payload."""
    one = w.publish(1)
    w.aspire(one)
    w.executor.run_held()
    before = w.target.calls[-1].versions
    w.aspire(one)
    assert w.executor.held == []
    assert w.target.calls[-1].versions == before


def test_a_full_cache_is_the_new_versions_error_and_spares_the_old_one(
    tmp_path: Path,
) -> None:
    """What may still be serving is not deleted to make room."""
    w = World(tmp_path, max_bytes=15)
    w.deploy(1)
    w.used = {1}
    two = w.publish(2, b"abcdefghij")
    for _ in range(3):
        w.aspire(two)
        w.executor.run_held()
        assert w.last() == ["2 RESOURCE_EXHAUSTED"]
    assert len(list((tmp_path / "versions").iterdir())) == 1
    w.used = set()
    w.aspire(two)
    w.executor.run_held()
    assert w.last() == ["2"]
    w.close()


def test_swaps_fit_into_room_for_two(tmp_path: Path) -> None:
    """What nothing uses any more makes room, and is not copied again while it is there."""
    w = World(tmp_path, max_bytes=25)
    for version in range(1, 8):
        w.deploy(version)
    w.deploy(6)
    assert w.remote.num_copies == 7
    assert w.cache.size_bytes <= 25
    w.close()


def test_what_serves_keeps_its_copy_however_many_successors_fail(
    tmp_path: Path,
) -> None:
    """Its workers may have to be made anew from it; what failed makes room."""
    w = World(tmp_path, max_bytes=35)
    w.deploy(1)
    w.used = {1}
    for version in range(2, 9):
        w.deploy(version)
    copies = w.remote.num_copies
    w.aspire(w.publish(1, b"%10d" % 1))
    assert w.last() == ["1"]
    assert w.remote.num_copies == copies
    w.close()


def test_of_a_version_replaced_in_place_the_last_contents_are_kept(
    tmp_path: Path,
) -> None:
    """They may serve on until the new ones are loaded, and older ones cannot."""
    w = World(tmp_path, max_bytes=35)
    w.used = {1}
    for number in range(6):
        w.deploy(1, b"%10d" % number)
    assert w.cache.size_bytes <= 35
    w.close()


def test_who_goes_back_to_what_still_serves_needs_no_store(w: World) -> None:
    """The copy of the version before is there, though nothing else answers."""
    one = w.publish(1, b"%10d" % 1)
    w.deploy(1)
    w.used = {1}
    w.deploy(2)
    w.remote.files.clear()
    w.remote.failing_call = w.remote.num_calls + 1
    w.aspire(one)
    assert w.last() == ["1"]
    assert w.executor.held == []


def test_a_store_that_did_not_answer_is_asked_again_soon(w: World) -> None:
    """Nobody has to repeat what is wanted; the pauses double from a second on."""
    one = w.publish(1)
    held, w.remote.files = w.remote.files, {}
    w.remote.failing_call = w.remote.num_calls + 1
    w.aspire(one)
    w.executor.run_held()
    assert w.last() == ["1 UNAVAILABLE"]
    w.remote.failing_call = w.remote.num_calls + 1
    w.advance(1.0)
    assert w.last() == ["1 UNAVAILABLE"]
    w.remote.files = held
    calls = w.remote.num_calls
    w.advance(1.0)
    assert w.remote.num_calls == calls
    w.advance(1.0)
    assert w.last() == ["1"]
    assert w.timers == []


def test_what_is_not_wanted_any_more_is_not_tried_again(w: World) -> None:
    """A try that is due when its version was given up does nothing."""
    one, two = w.publish(1), w.publish(2)
    w.remote.failing_call = w.remote.num_calls + 1
    w.aspire(one)
    w.executor.run_held()
    w.aspire(two)
    w.executor.run_held()
    copies = w.remote.num_copies
    w.advance(60.0)
    assert w.last() == ["2"]
    assert w.remote.num_copies == copies
    w.aspire()
    w.advance(60.0)
    assert w.last() == []


def test_a_closed_adapter_tells_nobody(w: World) -> None:
    """A copy that ends after close is released, a later call does nothing."""
    w.aspire(w.publish(1))
    w.adapter.close()
    calls = len(w.target.calls)
    w.executor.run_held()
    w.aspire()
    assert len(w.target.calls) == calls


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=check_name)
def test_the_fetching_adapter_keeps_the_promises(
    check: AdapterCheck, tmp_path: Path
) -> None:
    """It is an adapter like any other."""

    def make() -> FetchingSourceAdapter:
        options = VersionCacheOptions(str(tmp_path))
        return FetchingSourceAdapter(
            VersionCache(options, FakeRemote()), lambda _, copy: copy()
        )

    check(make, StoragePath("/m/1"))  # type: ignore[arg-type]


def test_a_copy_that_failed_is_tried_again_by_request(tmp_path: Path) -> None:
    """Pauses double up to a quarter of an hour; who has mended the store need not wait."""
    w = World(tmp_path)
    one = w.publish(1)
    w.remote.failing_call = w.remote.num_calls + 1
    w.aspire(one)
    w.executor.run_held()
    assert w.last() == ["1 UNAVAILABLE"]
    w.aspire(one)
    assert w.executor.held == []
    w.adapter.forget_failures("m")
    w.adapter.forget_failures("nobody")
    w.aspire(one)
    w.executor.run_held()
    assert w.last() == ["1"]
    w.close()
