"""Which loads a basic manager begins while memory is limited, to ten bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from managers.versions.harness_state import HarnessState
from managers.versions.version import RetryOptions
from tests.managers.environment import POOLS
from tests.managers.executor_world import S1_1, S3_1, THREADS, World
from tests.present import present
from tfs.core.errors import (
    Code,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState
from tfs.testing.fake_loader import FakeLoader
from tfs.testing.sequencer import Sequencer


@pytest.fixture
def constrained() -> Iterator[World]:
    world = World(THREADS, limit_bytes=10, retry=RetryOptions(max_num_retries=0))
    yield world
    world.close()


def test_loads_that_fit_run_at_the_same_time(constrained: World) -> None:
    """Two of 5 meet inside load() (ResourceConstrained ConcurrentLoads)."""
    barrier = threading.Barrier(2, timeout=30.0)
    outcomes = [
        constrained.load(
            constrained.loader(f"L{i}", 1, ram_bytes=5, on_load=barrier.wait)
        )
        for i in range(2)
    ]
    assert [outcome.error for outcome in outcomes] == [None, None]


def test_load_that_does_not_fit_is_refused_and_the_others_serve_on(
    constrained: World,
) -> None:
    """RESOURCE_EXHAUSTED is that version's end (InsufficientResources)."""
    assert constrained.load(constrained.loader("S1", 1, ram_bytes=10)).error is None
    outcome = constrained.load(constrained.loader("S3", 1, ram_bytes=1))
    constrained.settle()
    assert isinstance(outcome.error, ResourceExhausted)
    assert "Insufficient resources to load servable {name: S3 version: 1}" in str(
        outcome.error
    )
    assert "it takes 1 bytes, and models have 10 bytes of 10 bytes already" in str(
        outcome.error
    )
    assert constrained.harness_state(S3_1) is HarnessState.ERROR
    state = present(constrained.monitor.state(S3_1))
    assert (state.manager_state, state.error) == (ManagerState.END, outcome.error)
    assert constrained.is_found(ServableRequest.latest("S1"))


def test_a_load_that_can_never_fit_is_told_the_limit(constrained: World) -> None:
    """To unload others would not help, so nobody is told to."""
    outcome = constrained.load(constrained.loader("S1", 1, ram_bytes=11))
    assert (
        "it takes 11 bytes, which is more than all models may have together, 10 bytes; "
        "raise the limit"
    ) in str(outcome.error)


def test_failed_load_gives_back_what_it_reserved(constrained: World) -> None:
    """The next one fits (ResourcesReleasedIfLoadFails)."""
    bad = constrained.loader("S1", 1, ram_bytes=10, errors=[Internal("x")])
    assert constrained.load(bad).code is Code.INTERNAL
    assert constrained.load(constrained.loader("S3", 1, ram_bytes=10)).error is None


def test_peak_is_given_back_once_loaded(constrained: World) -> None:
    """The estimate is asked for again (ResourcesReleasedIfEstimateDecreasesAfterLoad)."""
    first = constrained.loader("S1", 1, ram_bytes=5, peak_bytes=5)
    assert constrained.load(first).error is None
    assert first.num_estimates == 2
    assert constrained.load(constrained.loader("S3", 1, ram_bytes=5)).error is None


def test_a_version_that_takes_more_than_there_is_goes_again(
    constrained: World,
) -> None:
    """A limit is one: what loading shows counts like what was expected of it."""
    assert constrained.load(constrained.loader("S1", 1, ram_bytes=4)).error is None
    large = constrained.loader("S3", 1, ram_bytes=1, loaded_bytes=7)
    outcome = constrained.load(large)
    assert isinstance(outcome.error, ResourceExhausted)
    assert (
        "loaded, it takes 7 bytes, where 1 bytes were expected; "
        "others use 4 bytes of 10 bytes"
    ) in outcome.error.message
    assert large.num_unloads == 1
    assert not constrained.is_found(ServableRequest.latest("S3"))
    tracker = present(constrained.tracker)
    assert tracker.used.describe() == "4 bytes"
    fits = constrained.loader("S4", 1, ram_bytes=1, loaded_bytes=6)
    assert constrained.load(fits).error is None
    assert tracker.used == tracker.total


def test_load_waits_for_an_unload_that_makes_room(constrained: World) -> None:
    """It is deferred, not refused (ResourcesReleasedAfterUnload)."""
    sequencer = Sequencer()
    big = constrained.loader(
        "S1", 1, ram_bytes=10, on_unload=lambda: sequencer.reach("unload")
    )
    constrained.load(big)
    constrained.settle()
    unload = constrained.begin_unload(S1_1)
    sequencer.wait_reached("unload")
    outcome = constrained.load(constrained.loader("S3", 1, ram_bytes=5))
    constrained.executors[0].wait_idle()  # type: ignore[attr-defined]
    constrained.executor.collect()
    assert not outcome.is_over
    assert constrained.executor.admission.num_deferred == 1
    sequencer.open("unload")
    assert unload.error is None
    constrained.settle()
    assert outcome.error is None


def test_load_that_can_never_fit_does_not_hold_up_the_next(
    constrained: World,
) -> None:
    """11 of 10 is denied at once, 10 then loads (FirstLoadDeniedSecondOneApproved)."""
    denied = constrained.load(constrained.loader("S1", 1, ram_bytes=11))
    approved = constrained.load(constrained.loader("S3", 1, ram_bytes=10))
    assert denied.code is Code.RESOURCE_EXHAUSTED
    constrained.settle()
    assert approved.error is None


def test_deferred_loads_are_decided_in_order(constrained: World) -> None:
    """A small load that would fit does not overtake a big one: that would starve."""
    sequencer = Sequencer()
    for name, ram_bytes in (("A", 5), ("B", 4)):
        constrained.load(
            constrained.loader(
                name,
                1,
                ram_bytes=ram_bytes,
                on_unload=lambda: sequencer.reach("unload"),
            )
        )
    constrained.settle()
    constrained.begin_unload(ServableId("A", 1))
    sequencer.wait_reached("unload")
    big = constrained.load(constrained.loader("big", 1, ram_bytes=10))
    constrained.executors[0].wait_idle()  # type: ignore[attr-defined]
    small = constrained.load(constrained.loader("small", 1, ram_bytes=1))
    constrained.executors[0].wait_idle()  # type: ignore[attr-defined]
    assert constrained.executor.admission.num_deferred == 2
    constrained.begin_unload(ServableId("B", 1))
    sequencer.open("unload")
    constrained.settle()
    assert big.error is None
    assert small.code is Code.RESOURCE_EXHAUSTED


def test_deferred_load_can_be_cancelled(constrained: World) -> None:
    """Giving it up needs nobody to make room."""
    constrained.load(constrained.loader("S1", 1, ram_bytes=10))
    constrained.settle()
    handle = constrained.serving_map.acquire_request(ServableRequest.latest("S1"))
    constrained.begin_unload(S1_1)
    outcome = constrained.load(constrained.loader("S3", 1, ram_bytes=5))
    constrained.executors[0].wait_idle()  # type: ignore[attr-defined]
    assert constrained.executor.admission.num_deferred == 1
    constrained.executor.cancel_load(S3_1)
    assert outcome.code is Code.CANCELLED
    assert constrained.executor.admission.num_deferred == 0
    handle.release()
    constrained.settle()


def test_estimate_that_fails_is_published(constrained: World) -> None:
    """END says what was attempted (EventBusErrorOnEstimateResources)."""
    loader = constrained.loader(
        "S3", 1, estimate_errors=[Internal("Error on estimate resources.")]
    )
    outcome = constrained.load(loader)
    assert outcome.error is not None
    assert outcome.error.message == (
        "Error while attempting to reserve resources to load servable "
        "{name: S3 version: 1}: Error on estimate resources."
    )
    assert constrained.events(S3_1) == ["START", "END"]
    assert loader.num_loads == 0


def test_estimate_is_retried_like_a_load() -> None:
    """EstimateResourcesRetriedTest Succeeds, Fails and NonRetriableError."""
    world = World(POOLS[0], limit_bytes=10, retry=RetryOptions(1, interval_s=0.0))
    good = world.loader("S1", 1, estimate_errors=[Unavailable("x")])
    outcome = world.load(good)
    world.settle()
    assert outcome.error is None
    bad = world.loader("S1", 2, estimate_errors=[Unavailable("x")] * 9)
    outcome = world.load(bad)
    world.settle()
    assert outcome.code is Code.UNAVAILABLE
    assert bad.num_estimates == 2
    never = world.loader("S1", 3, estimate_errors=[InvalidArgument("no.")] * 9)
    assert world.load(never).code is Code.INVALID_ARGUMENT
    assert never.num_estimates == 1


def test_only_permanent_errors_end_a_load_at_the_first_attempt() -> None:
    """One attempt despite 10 retries of 100 s.

    NonRetriableError, LoadError, UnloadDueToNonRetriableError upstream.
    """
    world = World(POOLS[0], retry=RetryOptions(10, interval_s=100.0))
    loader = world.loader("S3", 1, errors=[InvalidArgument("Non-retriable error.")])
    outcome = world.load(loader)
    assert str(outcome.error) == "INVALID_ARGUMENT: Non-retriable error."
    assert loader.num_loads == 1
    assert world.events(S3_1) == ["START", "LOADING", "END"]


def test_invalid_estimate_fails_only_its_version(constrained: World) -> None:
    """A device that is not there is that version's error."""
    from tfs.core.resources import Resource, ResourceAllocation

    class OnGpu(FakeLoader):
        def estimate_resources(self) -> ResourceAllocation:
            return ResourceAllocation({Resource("gpu", "ram_in_bytes", 0): 1})

    outcome = constrained.load(OnGpu(S3_1, log=constrained.log))
    assert outcome.code is Code.INVALID_ARGUMENT
    assert constrained.load(constrained.loader("S1", 1, ram_bytes=10)).error is None


def test_unloaded_version_gives_back_all_it_reserved(constrained: World) -> None:
    """After everything has gone nothing is in use."""
    constrained.load(constrained.loader("S1", 1, ram_bytes=4, peak_bytes=6))
    constrained.load(constrained.loader("S3", 1, ram_bytes=3))
    constrained.settle()
    for servable_id in constrained.serving_map.list_ids():
        constrained.begin_unload(servable_id)
    constrained.settle()
    assert present(constrained.tracker).used.describe() == "nothing"
