"""Loading on demand, against TensorFlow Serving's cases."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from managers.caching_manager import CachingManager, PathPrefixLoaderFactory
from managers.serving_map import ServingMap
from managers.state_monitor import ServableStateMonitor
from managers.versions.version import LoaderData, RetryOptions, Version
from tests.managers.environment import POOLS, Pools, executor
from tests.present import present
from tests.threads import run_together
from tfs.core.errors import (
    Code,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
    Unknown,
)
from tfs.core.event_bus import EventBus
from tfs.core.loader import Loader
from tfs.core.servable_handle import ServableHandle, available_as
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.source import ServableData
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader, FakeServable, LoaderLog
from tfs.testing.sequencer import Sequencer

MISSING = "missing"


class FakeFactory:
    """Makes fake loaders, of versions 7 to 42 it says. Thread-safe."""

    def __init__(self) -> None:
        self.log = LoaderLog()
        self.made: list[ServableId] = []
        self.error: ServingError | None = None
        self.fault: Exception | None = None
        self.load_errors: list[BaseException | None] = []
        self.on_load: Callable[[], object] | None = None

    def make(self, servable_id: ServableId) -> LoaderData:
        if self.fault is not None:
            raise self.fault
        self.made.append(servable_id)
        if self.error is not None:
            return ServableData(servable_id, None, self.error)
        errors, self.load_errors = self.load_errors, []
        loader = FakeLoader(
            servable_id, log=self.log, errors=errors, on_load=self.on_load
        )
        return ServableData(servable_id, loader)

    def latest_version(self, name: str) -> int:
        if name == MISSING:
            raise NotFound(f"no servable {name}")
        return 42

    def earliest_version(self, name: str) -> int:
        if name == MISSING:
            raise NotFound(f"no servable {name}")
        return 7


class World:
    def __init__(self, pools: Pools) -> None:
        self.clock = FakeClock()
        self.factory = FakeFactory()
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(self.bus, clock=self.clock)
        self.manager = CachingManager(
            self.factory,
            event_bus=self.bus,
            clock=self.clock,
            load_executor=executor(pools.num_load, "load", self.clock),
            unload_executor=executor(pools.num_unload, "unload", self.clock),
            retry=RetryOptions(max_num_retries=1, interval_s=0.0),
        )

    def value(self, request: ServableRequest) -> object:
        with self.manager.acquire(request) as servable:
            assert isinstance(servable, FakeServable)
            return servable.value


@pytest.fixture(params=POOLS, ids=str)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    assert world.manager.close(world.clock.now() + 1.0)
    assert world.factory.log.resident == []


def test_request_loads_what_it_asks_for(world: World) -> None:
    """One request or several, each version loaded once.

    ServableHandleSingleRequest and ServableHandleMultipleRequests upstream.
    """
    assert world.value(ServableRequest.specific("a", 30)) == 30
    assert world.value(ServableRequest.specific("a", 31)) == 31
    assert world.value(ServableRequest.specific("a", 30)) == 30
    assert world.factory.made == [ServableId("a", 30), ServableId("a", 31)]


def test_request_without_version_asks_the_factory_which(world: World) -> None:
    """The factory says which version is the latest or earliest; loads are reused.

    ServableHandleSingleRequestLatest, ServableHandleMultipleRequestsLatest,
    ServableHandleSingleRequestEarliest and ServableHandleMultipleRequestsEarliest
    upstream.
    """
    for _ in range(2):
        assert world.value(ServableRequest.latest("a")) == 42
        assert world.value(ServableRequest.earliest("a")) == 7
    assert world.value(ServableRequest.specific("a", 42)) == 42
    assert world.value(ServableRequest.specific("a", 7)) == 7
    assert world.factory.made == [ServableId("a", 42), ServableId("a", 7)]


def test_load_error_reaches_the_requester_and_is_not_kept(world: World) -> None:
    """The next request tries anew (ServableHandleError, EventBusErrorHandle)."""
    world.factory.load_errors = [InvalidArgument("bad")]
    with pytest.raises(InvalidArgument, match="bad"):
        world.manager.acquire(ServableRequest.specific("a", 1))
    state = present(world.monitor.state(ServableId("a", 1)))
    assert (state.manager_state, str(state.error)) == (
        ManagerState.END,
        "INVALID_ARGUMENT: bad",
    )
    assert world.value(ServableRequest.specific("a", 1)) == 1


def test_factorys_error_reaches_the_requester(world: World) -> None:
    """A version there is no loader for ends with the factory's error."""
    world.factory.error = Unknown("no such thing")
    with pytest.raises(Unknown, match="no such thing"):
        world.manager.acquire(ServableRequest.specific("a", 1))
    world.factory.error = None
    assert world.value(ServableRequest.specific("a", 1)) == 1


def test_passing_fault_is_retried_for_the_requester(world: World) -> None:
    """Retries happen while the requester waits."""
    world.factory.load_errors = [Unavailable("first")]
    assert world.value(ServableRequest.specific("a", 1)) == 1


def test_available_handles_are_what_is_loaded(world: World) -> None:
    """Handles of the wanted type are given for what is loaded; nothing is loaded.

    GetAvailableServableHandles, ListAvailableServableIds upstream.
    """
    assert available_as(world.manager.serving_map.acquire_all(), FakeServable) == {}
    world.value(ServableRequest.specific("a", 1))
    world.value(ServableRequest.specific("b", 2))
    pinned = available_as(world.manager.serving_map.acquire_all(), FakeServable)
    assert [i.slashed for i in pinned] == ["a/1", "b/2"]
    for handle in pinned.values():
        handle.release()
    assert available_as(world.manager.serving_map.acquire_all(), float) == {}
    assert [i.slashed for i in world.manager.list_available_ids()] == ["a/1", "b/2"]


def test_available_is_published(world: World) -> None:
    """States of versions loaded on demand are states (EventBusSingleRequest)."""
    world.value(ServableRequest.specific("a", 1))
    state = present(world.monitor.state(ServableId("a", 1)))
    assert state.manager_state is ManagerState.AVAILABLE
    assert state.reason == "requested"


@pytest.mark.parametrize("num_ids", [8, 2])
def test_concurrent_requests_load_each_version_once(world: World, num_ids: int) -> None:
    """Requests for a version that is being loaded wait for that load
    (ConcurrentDisjointRequests and ConcurrentIntersectingRequests).
    """
    values: list[object] = []

    def ask(index: int) -> None:
        values.append(world.value(ServableRequest.specific("a", index % num_ids)))

    run_together(*(partial(ask, index) for index in range(8)))
    assert sorted(map(str, values)) == sorted(str(i % num_ids) for i in range(8))
    assert len(world.factory.made) == num_ids
    assert world.manager.num_loading == 0


def test_deadline_ends_the_wait_and_not_the_load() -> None:
    """A requester that gives up leaves the load to those who come later."""
    world = World(POOLS[3])
    sequencer = Sequencer()
    world.factory.on_load = lambda: sequencer.reach("load")
    request = ServableRequest.specific("a", 1)
    with pytest.raises(DeadlineExceeded):
        world.manager.acquire(request, world.clock.now())
    sequencer.wait_reached("load")
    sequencer.open("load")
    assert world.value(request) == 1
    assert len(world.factory.made) == 1
    assert world.manager.close(world.clock.now() + 1.0)


def requester(
    manager: CachingManager, deadline_s: float | None = None
) -> tuple[threading.Thread, list[ServingError]]:
    """Starts a thread that asks for a version; returns it, and what it is told."""
    errors: list[ServingError] = []

    def ask() -> None:
        try:
            manager.acquire(ServableRequest.specific("a", 1), deadline_s).release()
        except ServingError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, errors


def always_failing(clock: FakeClock) -> tuple[CachingManager, FakeFactory]:
    """Returns a manager with the default retries, over a storage that is away."""
    factory = FakeFactory()
    factory.load_errors = [Unavailable("storage is away")] * 99
    return CachingManager(factory, clock=clock), factory


def test_who_asks_hears_of_a_failure_within_the_second() -> None:
    """The next request tries anew: nobody is kept for a server's long pauses."""
    clock = FakeClock()
    manager, factory = always_failing(clock)
    attempts = threading.Semaphore(0)
    factory.on_load = attempts.release
    thread, errors = requester(manager)
    for pause_s in (0.1, 0.2):
        assert attempts.acquire(timeout=30.0)
        clock.block_until_sleepers(1)
        clock.advance(pause_s)
    thread.join(30.0)
    assert [error.message for error in errors] == ["storage is away"]
    manager.acquire(ServableRequest.specific("a", 1)).release()
    assert manager.close()


def test_a_deadline_tells_what_failed_last() -> None:
    """Who gives up knows whether it was slow or broken."""
    clock = FakeClock()
    manager, _ = always_failing(clock)
    deadline_s = clock.now() + 0.05
    thread, errors = requester(manager, deadline_s)
    clock.block_until_sleepers(1)
    clock.advance(0.05)
    thread.join(30.0)
    assert [error.code for error in errors] == [Code.DEADLINE_EXCEEDED]
    assert "the last attempt failed: storage is away" in errors[0].message
    assert manager.close()


def test_close_waits_for_no_pause() -> None:
    """A load that pauses before it is tried again is given up."""
    clock = FakeClock()
    manager, factory = always_failing(clock)
    thread, errors = requester(manager)
    clock.block_until_sleepers(1)
    assert manager.close()
    thread.join(30.0)
    assert [error.message for error in errors] == ["storage is away"]
    assert factory.log.resident == []


def test_closed_manager_loads_nothing() -> None:
    """After close() a request is NOT_FOUND."""
    world = World(POOLS[0])
    world.value(ServableRequest.specific("a", 1))
    assert world.manager.close()
    assert world.manager.close()
    with pytest.raises(NotFound, match="manager is closed"):
        world.manager.acquire(ServableRequest.specific("a", 1))
    assert world.factory.log.resident == []


def test_close_waits_for_pins_until_its_deadline() -> None:
    """What is pinned past the deadline stays loaded."""
    world = World(POOLS[0])
    handle = world.manager.acquire(ServableRequest.specific("a", 1))
    assert world.manager.close(world.clock.now()) is False
    assert isinstance(handle.servable, FakeServable)
    assert handle.servable.is_alive
    handle.release()
    assert world.manager.close()


def test_a_factory_that_raises_anything_fails_its_request_alone() -> None:
    """Those who ask next do not wait for a load that never began."""
    world = World(POOLS[0])
    world.factory.fault = OSError("disk")
    for _ in range(2):
        with pytest.raises(Internal, match="disk"):
            world.manager.acquire(ServableRequest.specific("a", 1), world.clock.now())
    assert world.manager.num_loading == 0
    world.factory.fault = None
    assert world.value(ServableRequest.specific("a", 1)) == 1
    assert world.manager.close()


def test_a_load_that_ends_after_the_look_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who saw nothing loaded and comes when the load is over gets what was loaded."""
    world = World(POOLS[0])
    acquire = world.manager.serving_map.acquire_version
    looks = iter([True])

    def slow_look(name: str, version: int) -> ServableHandle[object]:
        try:
            return acquire(name, version)
        except NotFound:
            if next(looks, False):  # another requester loads it right now
                assert world.value(ServableRequest.specific("a", 1)) == 1
            raise

    monkeypatch.setattr(ServingMap, "acquire_version", lambda _, *to: slow_look(*to))
    assert world.value(ServableRequest.specific("a", 1)) == 1
    assert len(world.factory.made) == 1
    assert world.manager.close()


def test_a_load_that_ends_while_somebody_joins_it_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for a load that nobody has begun."""
    world = World(POOLS[0])
    world.factory.load_errors = [InvalidArgument("bad")]
    looks: Iterator[bool] = itertools.repeat(False)
    settled = vars(Version)["is_settled"].fget
    monkeypatch.setattr(
        Version,
        "is_settled",
        property(lambda version: next(looks, True) and settled(version)),
    )
    request = ServableRequest.specific("a", 1)
    with pytest.raises(DeadlineExceeded):
        world.manager.acquire(request, world.clock.now())
    looks = iter([False])  # it ends after the next look
    with pytest.raises(InvalidArgument, match="bad"):
        world.manager.acquire(request, world.clock.now())
    assert world.manager.num_loading == 0
    assert world.value(request) == 1
    assert world.manager.close()


def test_path_prefix_factory_serves_version_zero() -> None:
    """prefix/name is version 0, others are errors.

    PathPrefixLoaderFactoryTest Basic and VersionOtherThanZeroYieldsError upstream.
    """
    paths: list[str] = []

    def make_loader(servable_id: ServableId, path: str) -> Loader[object]:
        paths.append(path)
        return FakeLoader(servable_id)

    factory = PathPrefixLoaderFactory("/models/", make_loader)
    assert factory.make(ServableId("a", 0)).payload is not None
    assert paths == ["/models/a"]
    assert factory.latest_version("a") == 0
    error = present(factory.make(ServableId("a", 1)).error)
    assert error.code is Code.FAILED_PRECONDITION
