"""Loads and unloads as told, against TensorFlow Serving's cases."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import pytest

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.versions.harness_state import HarnessState
from managers.versions.version import RetryOptions
from tests.managers.environment import POOLS
from tests.managers.executor_world import S1_1, S3_1, THREADS, Outcome, World
from tests.present import present
from tests.threads import run_together
from tfs.core.errors import (
    Code,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
    Unknown,
)
from tfs.core.process_memory import MemoryReleaser
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState
from tfs.core.source import ServableData
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader, FakeServable
from tfs.testing.sequencer import Sequencer


@pytest.fixture(params=POOLS, ids=str)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """S1 and S2, versions 1 and 2, loaded, as in upstream's fixture."""
    world = World(request.param)
    outcomes = [
        world.load(world.loader(name, version))
        for name in ("S1", "S2")
        for version in (1, 2)
    ]
    world.settle()
    assert all(outcome.error is None for outcome in outcomes)
    yield world
    world.close()


@pytest.fixture
def threaded() -> Iterator[World]:
    world = World(THREADS)
    yield world
    world.close()


# -- managing --------------------------------------------------------------------------


def test_second_manage_is_refused_and_the_first_stays(world: World) -> None:
    """The first loader is kept.

    AlreadyManagedError and MultipleManageCallsUsesFirstServable upstream.
    """
    first = world.loader("S3", 1, value="first")
    world.manage(first)
    with pytest.raises(FailedPrecondition, match="is already being managed"):
        world.manage(world.loader("S3", 1, value="second"))
    world.begin_load(S3_1)
    world.settle()
    with world.serving_map.acquire_request(
        ServableRequest.specific(S3_1.name, S3_1.version)
    ) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "first"


def test_unknown_version_cannot_be_forgotten(world: World) -> None:
    """Only what is managed can stop being it (StopManagingUnknownId)."""
    with pytest.raises(FailedPrecondition, match="is not being managed"):
        world.table.stop_managing(ServableId("S1", 100))


def test_active_version_cannot_be_forgotten(world: World) -> None:
    """What is loaded is unloaded first (StopManagingActiveServable)."""
    with pytest.raises(FailedPrecondition, match="not in a new or end state"):
        world.table.stop_managing(S1_1)
    assert world.harness_state(S1_1) is HarnessState.READY


def test_unloaded_version_stays_until_it_is_forgotten(world: World) -> None:
    """DISABLED and END are remembered, then gone (StopManagingDisabledServable; Load, Unload)."""
    assert world.begin_unload(S1_1).error is None
    assert world.harness_state(S1_1) is HarnessState.DISABLED
    state = present(world.monitor.state(S1_1))
    assert (state.manager_state, state.error) == (ManagerState.END, None)
    world.table.stop_managing(S1_1)
    assert world.table.find(S1_1) is None


def test_failed_version_stays_until_it_is_forgotten(world: World) -> None:
    """ERROR and its cause are remembered (DontStopManagingOnError)."""
    outcome = world.load(world.loader("S3", 1, errors=[InvalidArgument("bad")]))
    assert outcome.code is Code.INVALID_ARGUMENT
    world.settle()
    snapshot = present(world.table.find(S3_1))
    assert snapshot.state is HarnessState.ERROR
    assert snapshot.error is outcome.error
    state = present(world.monitor.state(S3_1))
    assert (state.manager_state, state.error) == (ManagerState.END, outcome.error)
    world.table.stop_managing(S3_1)


def test_names_and_snapshots_tell_what_is_managed(world: World) -> None:
    """One, both lists, and nothing of what is not managed.

    GetManagedServableNames, GetManagedServableStateSnapshot,
    GetManagedServableStateSnapshots upstream.
    """
    assert sorted(world.table.names()) == ["S1", "S2"]
    assert [(s.id.version, s.state) for s in world.table.snapshots("S1")] == [
        (1, HarnessState.READY),
        (2, HarnessState.READY),
    ]
    assert world.table.snapshots("S3") == []
    assert world.table.find(S3_1) is None


def test_new_version_that_is_forgotten_ends() -> None:
    """A version that published START publishes END, also if it never loaded."""
    world = World(POOLS[0])
    world.manage(world.loader("S3", 1))
    world.table.stop_managing(S3_1)
    assert world.events(S3_1) == ["START", "END"]


def test_erroneous_version_cannot_be_loaded(world: World) -> None:
    """Its load is refused and nothing can be requested; its end says why.

    ErroneousServable, EventBusErroneousVersion upstream.
    """
    error = Unknown("no adapter")
    world.table.manage(ServableData(S3_1, None, error))
    assert world.events(S3_1) == ["START", "END"]
    assert present(world.monitor.state(S3_1)).error is error
    assert world.begin_load(S3_1).code is Code.FAILED_PRECONDITION
    assert not world.is_found(ServableRequest.latest("S3"))
    assert present(world.table.find(S3_1)).error is error


# -- loading and unloading -------------------------------------------------------------


def test_unmanaged_version_cannot_be_loaded_or_unloaded(world: World) -> None:
    """NOT_FOUND through the callback (OutOfOrderLoadServable, UnloadWithoutManage)."""
    for outcome in (world.begin_load(S3_1), world.begin_unload(S3_1)):
        assert outcome.code is Code.NOT_FOUND
        assert "is not being managed by the manager" in str(outcome.error)


def test_pinned_version_occupies_no_unload_thread(threaded: World) -> None:
    """Handles held for long delay their own versions only, however many they are."""
    for index in range(4):
        threaded.load(threaded.loader(f"held{index}", 1))
    threaded.load(threaded.loader("S3", 1))
    threaded.settle()
    held = [
        threaded.serving_map.acquire_request(ServableRequest.latest(f"held{index}"))
        for index in range(4)
    ]
    for handle in held:
        threaded.begin_unload(handle.id)
    assert threaded.begin_unload(S3_1).error is None
    for handle in held:
        handle.release()


def stuck() -> None:
    """Stands for what no unload gets past."""
    raise RuntimeError("stuck")


def test_unload_that_raises_ends_with_its_error(world: World) -> None:
    """It is over all the same; what it raised is its error."""
    world.load(world.loader("S3", 1, on_unload=stuck))
    world.settle()
    assert world.begin_unload(S3_1).code is Code.INTERNAL
    assert world.events(S3_1)[-1] == "END"
    assert world.harness_state(S3_1) is HarnessState.ERROR


def test_many_loads_and_unloads_do_not_lock_each_other_up(world: World) -> None:
    """Twenty servables come and go at the same time, and all end (LoadsThenUnloads,
    InterleavedLoadsAndUnloads).
    """
    ids = [ServableId(f"M{index}", 1) for index in range(20)]
    loads = [world.load(world.loader(i.name, 1)) for i in ids]
    assert all(outcome.error is None for outcome in loads)
    outcomes: list[Outcome] = []
    for index, each in enumerate(ids):
        outcomes.append(world.begin_unload(each))
        outcomes.append(world.load(world.loader(f"N{index}", 1)))
    assert all(outcome.error is None for outcome in outcomes)


@pytest.mark.parametrize("is_load", [True, False])
def test_one_of_concurrent_requests_succeeds(threaded: World, is_load: bool) -> None:
    """Of many that ask for the same load or unload, one gets it
    (ConcurrentLoadsOnlyOneSucceeds and ConcurrentUnloadsOnlyOneSucceeds,
    MultipleLoadServables and MultipleUnloadServables).
    """
    threaded.manage(threaded.loader("S3", 1))
    if not is_load:
        assert threaded.begin_load(S3_1).error is None
    outcomes: list[Outcome] = []
    begin = threaded.begin_load if is_load else threaded.begin_unload

    def race() -> None:
        outcomes.append(begin(S3_1))

    run_together(*[race] * 4)
    codes = sorted(outcome.code for outcome in outcomes)
    assert codes == [Code.OK, *[Code.FAILED_PRECONDITION] * 3]


def test_cancelled_load_ends_with_its_error_and_never_again(threaded: World) -> None:
    """A load that was given up keeps its error and is not begun anew
    (RetryOnLoadErrorCancelledLoad, and LoadAfterCancelledLoad's refusal).
    """
    sequencer = Sequencer()
    loader = threaded.loader(
        "S3",
        1,
        errors=[Unavailable("x")] * 99,
        on_load=lambda: sequencer.reach("load"),
    )
    outcome = threaded.load(loader)
    sequencer.wait_reached("load")
    threaded.executor.cancel_load(S3_1)
    sequencer.open("load")
    assert outcome.code is Code.UNAVAILABLE
    assert loader.num_loads == 1
    assert threaded.state(S3_1) is ManagerState.END
    assert threaded.begin_load(S3_1).code is Code.FAILED_PRECONDITION


def test_load_cancelled_in_the_queue_never_begins(
    threaded: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits for a thread is given up at once, and nothing warns: it was asked for."""
    sequencer = Sequencer()
    for index in range(2):
        threaded.load(
            threaded.loader(f"B{index}", 1, on_load=lambda: sequencer.reach("load"))
        )
    sequencer.wait_reached("load", 2)
    loader = threaded.loader("S3", 1)
    outcome = threaded.load(loader)
    threaded.executor.cancel_load(S3_1)
    assert outcome.code is Code.CANCELLED
    sequencer.open("load")
    threaded.settle()
    assert loader.num_loads == 0
    assert threaded.events(S3_1) == ["START", "END"]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_hook_runs_before_the_load(world: World) -> None:
    """The hook gets the id, on the load pool, while LOADING is shown (PreLoadHook)."""
    seen: list[tuple[ServableId, ManagerState | None]] = []
    hooked = World(POOLS[0], pre_load_hook=lambda i: seen.append((i, hooked.state(i))))
    loader = hooked.loader("S3", 1, errors=[Unavailable("x")])
    hooked.load(loader)
    hooked.settle()
    assert seen == [(S3_1, ManagerState.LOADING)]


def test_hook_that_raises_fails_the_load() -> None:
    """The load does not go on as if it had been prepared."""

    def broken(_: ServableId) -> None:
        raise OSError("disk")

    world = World(POOLS[0], pre_load_hook=broken)
    loader = world.loader("S3", 1)
    assert world.load(loader).code is Code.INTERNAL
    assert loader.num_loads == 0


def test_loader_without_a_servable_fails() -> None:
    """A load that leaves nothing to serve is undone."""

    class Empty(FakeLoader):
        @property
        def servable(self) -> FakeServable:
            raise Internal("nothing there")

    world = World(POOLS[0])
    loader = Empty(S3_1, log=world.log)
    assert world.load(loader).code is Code.INTERNAL
    assert loader.num_unloads == 1
    assert world.executor.admission.num_executing == 0


def test_closed_pool_fails_loads_and_still_unloads() -> None:
    """A manager that outlives its pools loses no memory."""
    world = World(POOLS[0])
    world.load(world.loader("S3", 1))
    world.executors[0].close()
    assert world.load(world.loader("S3", 2)).code is Code.CANCELLED
    world.executors[1].close()
    assert world.begin_unload(S3_1).error is None
    assert world.log.resident == []


def test_memory_that_cannot_be_given_back_keeps_no_version() -> None:
    """An unload is over although what follows it fails."""

    def fail() -> None:
        raise RuntimeError("no such library")

    world = World(THREADS, releaser=lambda clock: MemoryReleaser(clock, fail))
    world.load(world.loader("S3", 1))
    world.settle()
    outcome = world.begin_unload(S3_1)
    world.settle()
    assert outcome.is_over
    assert world.events(S3_1)[-1] == "END"
    world.table.stop_managing(S3_1)
    world.close()


@pytest.mark.parametrize("limit_bytes", [None, 10])
@pytest.mark.parametrize(("said", "fails"), [(None, False), (7, True)])
def test_an_estimate_that_is_none_is_the_loaders_fault(
    said: object,
    fails: bool,
    limit_bytes: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told in words, and nobody adds it up; who says nothing takes nothing."""
    world = World(
        THREADS, limit_bytes=limit_bytes, retry=RetryOptions(max_num_retries=0)
    )
    odd = world.loader("S3", 1)
    monkeypatch.setattr(odd, "estimate_resources", lambda: said)
    outcome = world.load(odd)
    world.settle()
    assert (outcome.error is not None) is fails
    if fails:
        assert "estimate_resources returned int" in str(outcome.error)
    assert world.load(world.loader("S4", 1, ram_bytes=5)).error is None
    world.close()


def test_memory_goes_back_on_the_unload_thread_and_not_too_often() -> None:
    """Two unloads in a row release once at once and once when it is time again."""
    released: list[float] = []

    def releaser(clock: FakeClock) -> MemoryReleaser:
        return MemoryReleaser(clock, lambda: released.append(clock.now()), 2.0)

    world = World(POOLS[0], releaser=releaser)
    start_s = world.clock.now()
    for version in (1, 2, 3):
        world.load(world.loader("S3", version))
        world.begin_unload(ServableId("S3", version))
    assert released == [start_s]
    assert world.executor.collect() == start_s + 2.0
    world.clock.advance(2.0)
    assert world.executor.collect() is None
    assert released == [start_s, start_s + 2.0]


def test_what_failed_loads_left_goes_back_too() -> None:
    """Memory of failed loads is given back once, on the unload pool."""
    released: list[float] = []

    def releaser(clock: FakeClock) -> MemoryReleaser:
        return MemoryReleaser(clock, lambda: released.append(clock.now()), 2.0)

    world = World(POOLS[0], releaser=releaser)
    for version in (1, 2, 3):
        broken = world.loader("S3", version, errors=[InvalidArgument("corrupt")])
        world.load(broken)
    assert released == []
    assert world.executor.collect() is None
    assert released == [world.clock.now()]


def test_state_says_since_when_it_holds(world: World) -> None:
    """What is noted later does not make an available version younger."""
    world.load(world.loader("S3", 1))
    world.settle()
    since_s = world.clock.wall_s()
    world.clock.advance(60.0)
    world.table.annotate(S3_1, note="inline: 0.2 ms", resident_bytes=4096)
    world.table.report_error(S3_1, FailedPrecondition("quarantined"))
    state = present(world.monitor.state(S3_1))
    assert (state.since_s, state.note, state.resident_bytes) == (
        since_s,
        "inline: 0.2 ms",
        4096,
    )
    assert state.error is not None
    world.begin_unload(S3_1)
    world.settle()
    state = present(world.monitor.state(S3_1))
    assert (state.since_s, state.error) == (world.clock.wall_s(), None)


def test_what_is_found_out_while_it_loads_is_published_with_it(world: World) -> None:
    """AVAILABLE comes once, and says at once where the version runs."""
    world.load(
        world.loader(
            "S3",
            1,
            on_load=lambda: world.table.annotate(S3_1, note="runs inline"),
        )
    )
    world.settle()
    assert world.events(S3_1) == ["START", "LOADING", "AVAILABLE"]
    assert present(world.monitor.state(S3_1)).note == "runs inline"


def test_what_is_known_already_is_not_published_again(world: World) -> None:
    """A note that says nothing new is no news for anybody who follows states."""
    world.load(world.loader("S3", 1))
    world.settle()
    for _ in range(2):
        world.table.annotate(S3_1, note="inline: 0.2 ms")
    assert world.events(S3_1) == ["START", "LOADING", "AVAILABLE", "AVAILABLE"]


@pytest.mark.parametrize("pause_s", [-1.0, math.nan])
def test_a_bad_option_is_refused_on_creation(pause_s: float) -> None:
    """A pause or a patience that no clock can measure would be found in a failed load."""
    for field in ("interval_s", "max_interval_s"):
        with pytest.raises(ValueError, match="retry pauses are negative or no numbers"):
            RetryOptions(**{field: pause_s})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="patience_s must be positive"):
        AspiredVersionsManagerOptions(patience_s=pause_s)
