"""The manager against TensorFlow Serving's cases, and ours beyond them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import HarnessState
from managers.resource_tracker import ResourceTracker
from managers.retry import RetryOptions
from managers.serving_map import Handle, ServingMap
from managers.version_policy.action import Action, ActionKind
from managers.version_policy.availability_preserving import availability_preserving
from managers.version_policy.resource_preserving import resource_preserving
from managers.version_policy.standing_in import standing_in
from tests.managers.environment import NO_RETRY, POOLS, Environment, Pools
from tfs.core.errors import (
    Code,
    DataLoss,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unknown,
)
from tfs.core.manager import acquire_as, available_as
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState
from tfs.testing.fake_loader import FakeLoader, FakeServable
from tfs.testing.sequencer import Sequencer

A, END = ManagerState.AVAILABLE, ManagerState.END


@pytest.fixture(params=POOLS, ids=str)
def env(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """Two servables with versions 0 and 1 available, as in upstream's fixture."""
    environment = Environment(request.param)
    for name in ("S1", "S2"):
        environment.aspire(name, 0, 1)
    environment.settle()
    assert all(environment.state(n, v) is A for n in ("S1", "S2") for v in (0, 1))
    yield environment
    assert environment.close()
    assert environment.log.resident == []


@pytest.fixture(params=POOLS, ids=str)
def empty(request: pytest.FixtureRequest) -> Iterator[Environment]:
    environment = Environment(request.param)
    yield environment
    assert environment.close()
    assert environment.log.resident == []


def not_found(env: Environment, request: ServableRequest) -> bool:
    try:
        env.manager.acquire(request).release()
    except NotFound:
        return True
    return False


# -- §5.1, in upstream's order ---------------------------------------------------------


def test_missing_name_is_not_found(env: Environment) -> None:
    """A name that was never aspired is NOT_FOUND (ServableHandleNotFoundMissingLoaderName)."""
    assert not_found(env, ServableRequest.latest("S1missing"))


def test_missing_version_is_not_found(env: Environment) -> None:
    """A version that is not loaded is NOT_FOUND (ServableHandleNotFoundMissingVersion)."""
    assert not_found(env, ServableRequest.specific("S1", 100))


def test_wrong_type_is_invalid_argument_and_pins_nothing(env: Environment) -> None:
    """Asking for the wrong type says so and leaves no pin (ServableHandleInvalidArgument)."""
    with pytest.raises(InvalidArgument, match="Servable type doesn't match"):
        acquire_as(env.manager, ServableRequest.latest("S1"), float)
    handle = acquire_as(env.manager, ServableRequest.latest("S1"), FakeServable)
    assert handle.servable.value == 1
    assert handle.num_pins == 1
    handle.release()


def test_latest_is_the_highest_available(env: Environment) -> None:
    """Latest is the highest version that is loaded (ServableHandleLatest)."""
    env.aspire("S1", 3)
    env.settle()
    assert env.latest("S1") == 3
    assert env.available("S1") == (3,)


def test_latest_version_may_be_zero(env: Environment) -> None:
    """Version 0 is a version like any other (ServableHandleLatestVersionIsZero)."""
    env.aspire("S3", 0)
    env.settle()
    with env.manager.acquire(ServableRequest.latest("S3")) as servable:
        assert isinstance(servable, FakeServable)
        assert (servable.id, servable.value) == (ServableId("S3", 0), 0)


def test_aspired_error_is_replaced_by_a_good_payload(env: Environment) -> None:
    """ReloadAspiredError: ours always reloads, upstream only with its flag."""
    env.aspire("S1", 0, 1, (2, Unknown("no such adapter")))
    env.settle()
    assert env.state("S1", 2) is END
    assert not_found(env, ServableRequest.specific("S1", 2))
    env.aspire("S1", 0, 1, (2, Unknown("no such adapter")))
    env.settle()
    assert env.state("S1", 2) is END
    env.aspire("S1", 0, 1, 2)
    env.settle()
    assert env.state("S1", 2) is A
    assert env.error("S1", 2) is None
    assert env.latest("S1") == 2


def test_specific_request_gets_that_version(env: Environment) -> None:
    """A request by id gets exactly that version (ServableHandleSpecificVersion)."""
    with env.manager.acquire(ServableRequest.from_id(ServableId("S2", 0))) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.id == ServableId("S2", 0)


def test_failed_versions_are_never_listed(env: Environment) -> None:
    """Listings hold what can be requested and nothing else (ListAvailableServableIds)."""
    assert [i.slashed for i in env.manager.list_available_ids()] == [
        "S1/0",
        "S1/1",
        "S2/0",
        "S2/1",
    ]
    env.aspire("S1", env.loader("S1", 7, errors=[Internal("x")] * 5))
    env.settle()
    assert env.state("S1", 7) is END
    assert all(i.version != 7 for i in env.manager.list_available_ids())
    env.aspire("S1")
    env.settle()
    assert [i.slashed for i in env.manager.list_available_ids()] == ["S2/0", "S2/1"]


def test_available_handles_skip_what_failed(env: Environment) -> None:
    """Handles come for every available version and no failed one (GetAvailableServableHandles)."""
    env.aspire("S1", 1, env.loader("S1", 7, errors=[Internal("x")] * 5))
    env.settle()
    handles = available_as(env.manager.serving_map.acquire_all(), FakeServable)
    assert [i.slashed for i in handles] == ["S1/1", "S2/0", "S2/1"]
    for handle in handles.values():
        handle.release()


def test_available_handles_of_another_type_are_none(env: Environment) -> None:
    """GetAvailableServableHandlesWrongType: an empty answer, nothing pinned."""
    assert available_as(env.manager.serving_map.acquire_all(), float) == {}
    handle = env.manager.acquire(ServableRequest.latest("S1"))
    assert handle.num_pins == 1
    handle.release()


def test_empty_aspiration_unloads_everything(env: Environment) -> None:
    """Aspiring nothing unloads and forgets every version (AspiredRemovedFull)."""
    env.aspire("S1")
    env.settle()
    assert [env.state("S1", v) for v in (0, 1)] == [END, END]
    assert env.log.count("unload") == 2
    assert env.manager.snapshots("S1") == []
    assert not_found(env, ServableRequest.latest("S1"))


def test_omitted_version_is_unloaded_the_other_serves(env: Environment) -> None:
    """Only what is omitted is unloaded (AspiredRemovedPartial)."""
    env.aspire("S1", 0)
    env.settle()
    assert not_found(env, ServableRequest.specific("S1", 1))
    assert env.latest("S1") == 0


def test_going_back_to_a_smaller_version_works(env: Environment) -> None:
    """A version may come back after a higher one (RevertToSmallerVersionNumber)."""
    env.aspire("S1", 1)
    env.settle()
    env.aspire("S1", 0)
    env.settle()
    assert env.state("S1", 0) is A
    assert env.state("S1", 1) is END


def test_version_is_found_once_it_is_loaded(env: Environment) -> None:
    """AspiredAndManageStateLoad: aspiring alone loads nothing."""
    request = ServableRequest.specific("S1", 2)
    assert not_found(env, request)
    env.aspire("S1", 0, 1, 2)
    assert not_found(env, request)
    env.settle()
    assert not not_found(env, request)


def test_version_is_gone_once_it_is_unloaded(env: Environment) -> None:
    """AspiredAndManageStateUnload: un-aspiring alone unloads nothing."""
    env.aspire("S1")
    assert not not_found(env, ServableRequest.specific("S1", 1))
    env.settle()
    assert not_found(env, ServableRequest.specific("S1", 1))


def test_unloads_are_begun_before_loads(env: Environment) -> None:
    """ManagerPrefersUnloadOverLoad: both happen in one step, the unload first."""
    before = len(env.events())
    env.aspire("S2", 0, 1, 2)
    env.aspire("S1", 1)
    env.settle()
    begun = [e for e in env.events()[before:] if e[1] in ("LOADING", "UNLOADING")]
    assert begun[0] == ("S1/0", "UNLOADING")
    assert ("S2/2", "LOADING") in begun


def test_custom_order_may_load_first() -> None:
    """CustomSortActions: the options decide which action comes first."""
    options = AspiredVersionsManagerOptions(
        order=lambda action: action.id.name != "S2", release_memory=None
    )
    env = Environment(POOLS[0], options=options)
    for name in ("S1", "S2"):
        env.aspire(name, 0, 1)
    env.settle()
    before = len(env.events())
    env.aspire("S1", 1)
    env.aspire("S2", 0, 1, 2)
    env.settle()
    begun = [e for e in env.events()[before:] if e[1] in ("LOADING", "UNLOADING")]
    assert begun == [("S2/2", "LOADING"), ("S1/0", "UNLOADING")]
    assert env.close()


def test_erroneous_version_is_never_found(env: Environment) -> None:
    """An erroneous version can never be requested (ErroneousAspiredVersion)."""
    env.aspire("S1", 0, 1, (3, Unknown("error")))
    assert not_found(env, ServableRequest.specific("S1", 3))
    env.settle()
    assert not_found(env, ServableRequest.specific("S1", 3))


def test_servable_is_destroyed_on_the_unload_thread(empty: Environment) -> None:
    """DestructOnNonServingThread: never on the thread that released the last pin."""
    loader = empty.loader("S3", 7)
    empty.aspire("S3", loader)
    empty.settle()
    handle = empty.manager.acquire(ServableRequest.latest("S3"))
    empty.aspire("S3")
    empty.step()
    assert loader.num_unloads == 0
    releaser = threading.Thread(target=handle.release)
    releaser.start()
    releaser.join()
    assert loader.num_unloads == 0 or loader.unload_thread is not releaser
    empty.settle()
    assert loader.num_unloads == 1
    assert loader.unload_thread is not releaser


def test_erroneous_version_publishes_its_error(env: Environment) -> None:
    """EventBusErroneousVersion: START, then END, both with the error."""
    env.aspire("S3", (9, Unknown("error")))
    env.step()
    assert env.events("S3") == [("S3/9", "START"), ("S3/9", "END")]
    error = env.error("S3", 9)
    assert error is not None
    assert (error.code, error.message) == (Code.UNKNOWN, "error")


def test_failed_load_publishes_its_error(env: Environment) -> None:
    """EventBusErrorOnLoad: START and LOADING healthy, END with the error."""
    env.aspire("S3", env.loader("S3", 9, errors=[Internal("Error on load.")] * 2))
    env.settle()
    assert env.events("S3") == [("S3/9", "START"), ("S3/9", "LOADING"), ("S3/9", "END")]
    states = [e.event for e in env.monitor.bounded_log() if e.event.id.name == "S3"]
    assert [s.error is None for s in states] == [True, True, False]
    assert str(states[-1].error) == "INTERNAL: Error on load."


def test_events_surround_loading_and_unloading(empty: Environment) -> None:
    """EventBusServableLifecycle: each state is published when it is promised."""
    seen: list[tuple[str, ManagerState | None, bool]] = []

    def note(where: str) -> None:
        found = not not_found(empty, ServableRequest.latest("S3"))
        seen.append((where, empty.state("S3", 7), found))

    def on_state(_: object) -> None:
        note("event")

    loader = empty.loader(
        "S3", 7, on_load=lambda: note("load"), on_unload=lambda: note("unload")
    )
    stop = empty.monitor.listen(on_state)
    empty.aspire("S3", loader)
    empty.settle()
    empty.aspire("S3")
    empty.settle()
    stop()
    assert seen == [
        ("event", ManagerState.START, False),
        ("event", ManagerState.LOADING, False),
        ("load", ManagerState.LOADING, False),
        ("event", ManagerState.AVAILABLE, True),
        ("event", ManagerState.UNLOADING, True),
        ("unload", ManagerState.UNLOADING, False),
        ("event", ManagerState.END, False),
    ]
    assert empty.error("S3", 7) is None


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_manager_works_without_a_bus(pools: Pools) -> None:
    """Without a bus everything works and nothing is published (NoEventBus)."""
    env = Environment(pools, has_bus=False)
    env.aspire("S3", 7)
    env.settle()
    assert env.latest("S3") == 7
    assert env.close()


def test_load_that_fails_once_is_retried(env: Environment) -> None:
    """A passing fault costs an attempt and leaves no error (RetryOnLoadErrorFinallySucceeds)."""
    env.aspire("S3", env.loader("S3", 7, errors=[Unavailable("first")]))
    env.settle()
    assert env.state("S3", 7) is A
    assert env.error("S3", 7) is None


def test_load_that_always_fails_ends(env: Environment) -> None:
    """After the last attempt the error is the outcome (RetryOnLoadErrorFinallyFails)."""
    loader = env.loader("S3", 7, errors=[Unavailable("always")] * 9)
    env.aspire("S3", loader)
    env.settle()
    assert env.state("S3", 7) is END
    assert str(env.error("S3", 7)) == "UNAVAILABLE: always"
    assert loader.num_loads == 2


def test_failed_new_version_leaves_the_old_one_serving(env: Environment) -> None:
    """AspireErrorDontUnload: one old version stays until a good one is ready."""
    bad = env.loader("S1", 7, errors=[InvalidArgument("corrupt")])
    env.aspire("S1", bad)
    env.settle()
    assert env.available("S1") == (1,)
    assert env.state("S1", 7) is END
    env.aspire("S1", 8)
    env.settle()
    assert env.available("S1") == (8,)
    assert env.state("S1", 1) is END


def test_reaspired_version_waits_for_the_pinned_old_one(empty: Environment) -> None:
    """UnaspireThenImmediatelyReaspire: first the unload, then the new loader's load."""
    first, second = empty.loader("S3", 7), empty.loader("S3", 7)
    empty.aspire("S3", first)
    empty.settle()
    handle = empty.manager.acquire(ServableRequest.latest("S3"))
    empty.aspire("S3")
    empty.settle()
    empty.aspire("S3", second)
    empty.settle()
    assert (first.num_unloads, second.num_loads) == (0, 0)
    assert empty.state("S3", 7) is ManagerState.UNLOADING
    handle.release()
    empty.settle()
    assert (first.num_unloads, second.num_loads) == (1, 1)
    assert [what for what, _ in empty.log.events] == ["load", "unload", "load"]
    assert [state for _, state in empty.events("S3")] == [
        "START",
        "LOADING",
        "AVAILABLE",
        "UNLOADING",
        "END",
        "START",
        "LOADING",
        "AVAILABLE",
    ]


def test_reaspired_failed_version_is_loaded_anew(empty: Environment) -> None:
    """A failed version that comes back gets its new loader (UnaspireFailedServableThenImmediatelyReaspire)."""
    first = empty.loader("S3", 7, errors=[InvalidArgument("corrupt")])
    second = empty.loader("S3", 7)
    empty.aspire("S3", first)
    empty.settle()
    empty.aspire("S3")
    empty.aspire("S3", second)
    empty.settle()
    assert (first.num_loads, second.num_loads) == (1, 1)
    assert empty.state("S3", 7) is A


def test_version_unaspired_before_it_was_loaded_never_is(empty: Environment) -> None:
    """UnaspireNewServableThenImmediatelyReaspire: the first loader is never called."""
    blocker = Sequencer()
    if empty.executors[0].num_threads == 1:
        pytest.skip("an inline pool takes every load at once")
    num = empty.executors[0].num_threads
    for index in range(num):
        empty.aspire(
            f"B{index}",
            empty.loader(f"B{index}", 1, on_load=lambda: blocker.reach("load")),
        )
    empty.manager.step()
    blocker.wait_reached("load", num)
    first, second = empty.loader("S3", 7), empty.loader("S3", 7)
    empty.aspire("S3", first)
    empty.manager.step()
    assert empty.state("S3", 7) is ManagerState.START
    empty.aspire("S3")
    empty.manager.step()
    assert empty.state("S3", 7) is END
    empty.aspire("S3", second)
    empty.manager.step()
    blocker.open("load")
    empty.settle()
    assert (first.num_loads, second.num_loads) == (0, 1)
    assert empty.latest("S3") == 7


def test_policy_sees_all_versions_of_a_servable_together() -> None:
    """A policy is asked about all versions of a servable at once (CallPolicyWithAllVersions)."""
    seen: list[set[int]] = []

    def policy(versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        seen.append({v.id.version for v in versions})
        return availability_preserving(versions)

    env = Environment(
        POOLS[0], options=AspiredVersionsManagerOptions(policy, release_memory=None)
    )
    env.aspire("S1", 0, 1, 2)
    env.settle()
    assert seen
    assert all(each == {0, 1, 2} for each in seen)
    assert env.close()


# -- beyond upstream -------------------------------------------------------------------


def test_wrong_name_is_refused_before_it_reaches_the_manager() -> None:
    """A version of another name cannot be aspired: the value itself refuses it."""
    from tfs.core.servable_data import AspiredVersions, ServableData

    with pytest.raises(ValueError, match="doesn't match name in servable version"):
        AspiredVersions("S1", (ServableData(ServableId("S2", 1), 1),))


def test_changed_files_are_loaded_beside_what_serves(env: Environment) -> None:
    """A version with another loader is reloaded; it is AVAILABLE all the while."""
    sequencer = Sequencer()
    changed = env.loader(
        "S1", 1, value="changed", on_load=lambda: sequencer.reach("load")
    )
    is_inline = env.executors[0].num_threads == 1
    if is_inline:
        sequencer.open("load")
    env.manager.annotate(ServableId("S1", 1), note="runs in process: asked for")
    before = len(env.events())
    env.aspire("S1", 0, changed, reason="1 changed")
    env.manager.step()
    if not is_inline:
        sequencer.wait_reached("load")
        with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
            assert isinstance(servable, FakeServable)
            assert servable.value == 1
        state = env.monitor.state(ServableId("S1", 1))
        assert state is not None
        assert state.reason.endswith("before serves; replacement: loading")
        assert state.note == "runs in process: asked for"  # as it still does
        sequencer.open("load")
    env.settle()
    with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "changed"
    states = {s for i, s in env.events()[before:] if i == "S1/1"}
    assert states == {"AVAILABLE"}
    assert env.log.count("unload", ServableId("S1", 1)) == 1
    assert len(env.manager.snapshots("S1")) == 2


def test_changed_files_that_fail_leave_the_loaded_ones_serving(
    env: Environment,
) -> None:
    """A reload that fails shows its error and takes nothing away."""
    bad = env.loader("S1", 1, errors=[InvalidArgument("corrupt")])
    env.aspire("S1", 0, bad)
    env.settle()
    assert env.state("S1", 1) is A
    assert str(env.error("S1", 1)) == "INVALID_ARGUMENT: corrupt"
    with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == 1
    env.aspire("S1", 0, env.loader("S1", 1, value="good"))
    env.settle()
    assert env.error("S1", 1) is None
    with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "good"


def test_contents_that_were_replaced_go_though_the_next_ones_fail() -> None:
    """Files that change again while they load leave only the newest good contents."""
    env = Environment(POOLS[0])
    env.aspire("m", env.loader("m", 1, value="first"))
    env.settle()
    bad = env.loader("m", 1, errors=[InvalidArgument("corrupt")])
    second = env.loader("m", 1, value="second", on_load=lambda: env.aspire("m", bad))
    env.aspire("m", second)
    env.settle()
    assert str(env.error("m", 1)) == "INVALID_ARGUMENT: corrupt"
    with env.manager.acquire(ServableRequest.specific("m", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "second"
    assert env.log.resident == [ServableId("m", 1)]
    assert env.close()


def test_changed_files_under_resource_preserving_unload_first(
    env: Environment,
) -> None:
    """Two generations of a version count as two: never both loaded."""
    env.manager.set_transition_policy("S1", resource_preserving)
    env.aspire("S1", 1)
    env.settle()
    env.log.max_num_resident.clear()
    before = len(env.events())
    env.aspire("S1", env.loader("S1", 1, value="changed"))
    env.settle()
    assert env.log.max_num_resident["S1"] == 1
    assert [s for _, s in env.events()[before:]] == [
        "AVAILABLE",  # changed, says its reason
        "UNLOADING",
        "END",
        "START",
        "LOADING",
        "AVAILABLE",
    ]


def test_transition_policy_can_differ_by_name(env: Environment) -> None:
    """A policy set at run time holds for its servable only, and can be taken back."""
    env.manager.set_transition_policy("S1", resource_preserving)
    before = len(env.events())
    env.aspire("S1", 2)
    env.aspire("S2", 2)
    env.settle()
    events = env.events()[before:]
    assert events.index(("S1/0", "END")) < events.index(("S1/2", "LOADING"))
    assert events.index(("S1/1", "END")) < events.index(("S1/2", "LOADING"))
    assert events.index(("S2/2", "AVAILABLE")) < events.index(("S2/1", "UNLOADING"))
    env.manager.set_transition_policy("S1", None)
    before = len(env.events())
    env.aspire("S1", 3)
    env.settle()
    events = env.events()[before:]
    assert events.index(("S1/3", "AVAILABLE")) < events.index(("S1/2", "UNLOADING"))


def test_unaspired_version_is_given_up_during_a_pause(empty: Environment) -> None:
    """A pause before a retry holds no thread and ends at once when un-aspired."""
    options = AspiredVersionsManagerOptions(
        retry=RetryOptions(max_num_retries=5, interval_s=60.0), release_memory=None
    )
    env = Environment(POOLS[1], options=options)
    loaders = [
        env.loader(f"M{i}", 1, errors=[Unavailable("not yet")] * 9) for i in range(10)
    ]
    for index, loader in enumerate(loaders):
        env.aspire(f"M{index}", loader)
    env.aspire("good", 1)
    next_s = env.settle()
    assert env.latest("good") == 1  # ten pauses occupy neither of two threads
    assert next_s == env.clock.now() + 60.0
    env.aspire("M0")
    env.settle()
    assert env.state("M0", 1) is END
    assert str(env.error("M0", 1)) == "UNAVAILABLE: not yet"
    env.clock.advance(60.0)
    env.settle()
    assert [loader.num_loads for loader in loaders] == [1] + [2] * 9
    assert env.close()


def test_policy_that_raises_stops_only_its_servable(env: Environment) -> None:
    """One servable's fault is its own."""

    def broken(_: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        raise RuntimeError("bug")

    env.manager.set_transition_policy("S1", broken)
    env.aspire("S1", 2)
    env.aspire("S2", 2)
    env.settle()
    assert env.available("S1") == (0, 1)
    assert env.available("S2") == (2,)


def test_every_load_and_unload_says_why(env: Environment) -> None:
    """The source's reason and the policy's travel with the state."""
    env.aspire("S1", 2, reason="latest(1) of /models/S1: 2 appeared")
    env.settle()
    reasons = {
        (e.event.id.version, e.event.manager_state): e.event.reason
        for e in env.monitor.bounded_log()
        if e.event.id.name == "S1"
    }
    assert reasons[2, A] == "latest(1) of /models/S1: 2 appeared; aspired"
    assert reasons[1, ManagerState.UNLOADING] == (
        "latest(1) of /models/S1: 2 appeared; version 2 serves"
    )


def test_quarantined_version_shows_its_fault_and_stays(env: Environment) -> None:
    """A fault reported by an interpreter is state; it unloads nothing."""
    servable_id = ServableId("S1", 1)
    env.manager.report_servable_error(
        servable_id, FailedPrecondition("quarantined: crashed 3 times")
    )
    assert env.state("S1", 1) is A
    assert str(env.error("S1", 1)).startswith("FAILED_PRECONDITION: quarantined")
    env.settle()
    assert env.available("S1") == (0, 1)
    env.manager.report_servable_error(servable_id, None)
    assert env.error("S1", 1) is None
    env.manager.report_servable_error(ServableId("nobody", 1), None)


def test_notes_and_measured_bytes_are_part_of_the_state(env: Environment) -> None:
    """What is found out later is published with the version's state."""
    env.manager.annotate(ServableId("S1", 1), note="inline: 0.2 ms", resident_bytes=512)
    state = env.monitor.state(ServableId("S1", 1))
    assert state is not None
    assert (state.manager_state, state.note, state.resident_bytes) == (
        A,
        "inline: 0.2 ms",
        512,
    )


def test_a_note_on_old_contents_hides_nothing_of_the_new_ones() -> None:
    """A note on old contents hides neither the progress nor the fault of new ones."""
    env = Environment(POOLS[3])
    env.aspire("m", 1)
    env.settle()
    sequencer = Sequencer()
    bad = env.loader(
        "m",
        1,
        errors=[InvalidArgument("damaged")],
        on_load=lambda: sequencer.reach("load"),
    )
    env.aspire("m", bad)
    env.manager.step()
    sequencer.wait_reached("load", 1)
    env.manager.annotate(ServableId("m", 1), note="left the loop")
    state = env.monitor.state(ServableId("m", 1))
    assert state is not None
    assert (state.manager_state, state.is_changing) == (A, True)
    sequencer.open("load")
    env.settle()
    env.manager.annotate(ServableId("m", 1), note="and came back")
    state = env.monitor.state(ServableId("m", 1))
    assert state is not None
    assert (str(state.error), state.is_changing) == ("INVALID_ARGUMENT: damaged", False)
    assert env.close()


def test_a_note_of_new_contents_is_not_shown_on_old_ones() -> None:
    """What a load finds out holds once its contents serve, and never if they fail."""
    env = Environment(POOLS[3])
    env.aspire("m", 1)
    env.settle()
    id_ = ServableId("m", 1)
    env.manager.annotate(id_, note="runs inline", resident_bytes=1)

    def note_of(loader: FakeLoader) -> str:
        env.aspire("m", loader)
        env.settle()
        state = env.monitor.state(id_)
        assert state is not None
        assert {each.split(":")[0] for each in seen} <= {"runs inline"}
        seen.clear()
        return f"{state.note} {state.resident_bytes}"

    seen: list[str] = []

    def look(number: int) -> None:
        env.manager.annotate(
            id_, note=f"runs in {number}", resident_bytes=number, is_loading=True
        )
        env.manager.annotate(id_, note="runs inline: quickly")
        state = env.monitor.state(id_)
        assert state is not None
        seen.append(state.note)

    bad = env.loader(
        "m", 1, errors=[InvalidArgument("damaged")], on_load=lambda: look(2)
    )
    assert note_of(bad) == "runs inline: quickly 1"
    good = env.loader("m", 1, on_load=lambda: look(3))
    assert note_of(good) == "runs in 3 3"
    assert env.close()


def test_closed_manager_ignores_sources(empty: Environment) -> None:
    """The callback stays callable for ever and does nothing after close()."""
    empty.aspire("S3", 7)
    empty.settle()
    assert empty.close()
    empty.aspire("S3", 7, 8)
    empty.manager.step()
    assert empty.manager.list_available_ids() == []


@pytest.mark.parametrize("pools", [p for p in POOLS if p.num_load], ids=str)
def test_whoever_decides_takes_nothing_for_ready_that_cannot_be_requested(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision at the very moment of publication does not give up the old version."""
    env = Environment(pools)
    env.aspire("m", 1)
    env.settle()
    at_publication: list[Sequence[int]] = []
    publish = ServingMap.publish

    def decide_first(serving_map: ServingMap, handle: Handle) -> Handle | None:
        env.manager.set_transition_policy("m", None)  # something to decide about
        env.manager.step()  # on the loading thread: no other one steps
        at_publication.append(env.available("m"))
        return publish(serving_map, handle)

    monkeypatch.setattr(ServingMap, "publish", decide_first)
    env.aspire("m", 2)
    env.settle()
    assert at_publication == [(1,)]
    assert env.available("m") == (2,)
    assert env.close()


def test_a_pin_taken_back_without_a_word_is_noticed(env: Environment) -> None:
    """A release that was looked up before the version was retired wakes nobody."""
    handle = env.manager.acquire(ServableRequest.specific("S1", 0))
    release = handle.release
    env.aspire("S1", 1)
    next_s = env.settle()
    assert env.state("S1", 0) is ManagerState.UNLOADING
    release()
    assert not env.manager.has_mail
    assert next_s is not None  # when to look again
    env.clock.advance(next_s - env.clock.now())
    env.settle()
    assert env.state("S1", 0) is END


def test_close_leaves_what_is_still_pinned(empty: Environment) -> None:
    """A pin that outlives the deadline keeps its servable; the rest is unloaded."""
    empty.aspire("S3", 7)
    empty.aspire("S4", 1)
    empty.settle()
    handle = empty.manager.acquire(ServableRequest.latest("S3"))
    assert empty.manager.close(empty.clock.now()) is False
    empty.wait_idle()
    assert isinstance(handle.servable, FakeServable)
    assert handle.servable.is_alive
    assert empty.manager.list_available_ids() == []
    handle.release()


def test_driver_thread_follows_events() -> None:
    """Started, the manager acts on what sources say; nobody steps it."""
    env = Environment(POOLS[3])
    env.manager.start()
    env.aspire("S1", 1)
    requests = [ServableRequest.specific("S1", 1)]
    assert env.monitor.wait_until_reached(requests, A)[0]
    env.aspire("S1", 2)
    assert env.monitor.wait_until_reached(requests, END)[0]
    assert env.latest("S1") == 2
    assert env.manager.close()


def test_driver_thread_retries_when_the_clock_says_so() -> None:
    """The driver sleeps until the retry is due, on the injected clock."""
    options = AspiredVersionsManagerOptions(
        retry=RetryOptions(max_num_retries=1, interval_s=30.0), release_memory=None
    )
    env = Environment(POOLS[0], options=options)
    env.manager.start()
    env.aspire("S1", env.loader("S1", 1, errors=[Unavailable("first")]))
    requests = [ServableRequest.specific("S1", 1)]
    loading = ManagerState.LOADING
    assert env.monitor.wait_until_reached(requests, loading)[0]
    env.clock.block_until_sleepers(1)
    while env.state("S1", 1) is loading:
        env.clock.block_until_sleepers(1)
        env.clock.advance(30.0)
        env.monitor.wait_until_reached(requests, A, env.clock.now())
    assert env.state("S1", 1) is A
    assert env.manager.close()


def test_loads_disturb_nobody_while_nothing_can_be_requested(
    empty: Environment,
) -> None:
    """While nothing can be requested, loads need not make way for requests."""
    manager, found = empty.manager, list[bool]()
    assert manager.disturbs_nobody
    loaders = [
        empty.loader("A", v, on_load=lambda: found.append(manager.disturbs_nobody))
        for v in (1, 2)
    ]
    for loader in loaders:
        empty.aspire("A", loader)
        empty.settle()
    assert found == [True, False]
    empty.aspire("A")
    empty.settle()
    assert manager.disturbs_nobody
    with manager.lend_all_threads():
        assert manager.disturbs_nobody


def test_lent_threads_come_back() -> None:
    """lend_all_threads enlarges the load pool and then restores it."""
    options = AspiredVersionsManagerOptions(
        num_initial_load_threads=9, release_memory=None
    )
    env = Environment(POOLS[1], options=options)
    sequencer = Sequencer()
    with env.manager.lend_all_threads():
        assert env.executors[0].num_threads == 9
        assert env.manager.is_lending
        for index in range(9):
            name = f"M{index}"
            env.aspire(
                name, env.loader(name, 1, on_load=lambda: sequencer.reach("load"))
            )
        env.manager.step()
        sequencer.wait_reached("load", 9)
        sequencer.open("load")
    assert env.executors[0].num_threads == 2
    assert not env.manager.is_lending
    env.settle()
    assert len(env.manager.list_available_ids()) == 9
    assert env.close()


def test_waiting_loads_and_idleness_are_told() -> None:
    """Measuring is put off while loads wait; idle means that nothing moves."""
    env = Environment(POOLS[1])
    sequencer = Sequencer()
    assert env.manager.is_idle
    for index in range(5):
        name = f"M{index}"
        env.aspire(name, env.loader(name, 1, on_load=lambda: sequencer.reach("load")))
    assert not env.manager.is_idle
    env.manager.step()
    sequencer.wait_reached("load", 2)
    assert env.manager.num_waiting_loads == 3
    assert not env.manager.is_idle
    sequencer.open("load")
    env.settle()
    assert env.manager.num_waiting_loads == 0
    assert env.manager.is_idle
    assert env.close()


def test_what_a_step_moves_on_is_not_idle() -> None:
    """The manager is not idle between taking in news and acting on it."""
    sequencer = Sequencer()

    def policy(versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        sequencer.reach("decision")
        return availability_preserving(versions)

    env = Environment(
        POOLS[-1], options=AspiredVersionsManagerOptions(transition_policy=policy)
    )
    env.aspire("M", env.loader("M", 1, on_load=lambda: sequencer.reach("load")))
    told: list[bool] = []
    stepping = threading.Thread(target=env.manager.step)
    asking = threading.Thread(target=lambda: told.append(env.manager.is_idle))
    stepping.start()
    sequencer.wait_reached("decision")
    asking.start()
    asking.join(0.05)  # a wrong answer comes at once
    sequencer.open("decision")
    stepping.join(30)
    asking.join(30)
    assert told == [False]
    sequencer.open("load")
    env.settle()
    assert env.manager.is_idle
    assert env.close()


def test_an_unload_that_was_not_told_is_not_idle() -> None:
    """Others that wait for the unload, or for its memory, have yet to be told."""
    env = Environment(POOLS[-1])
    sequencer = Sequencer()
    env.aspire("M", 1)
    env.settle()

    def hear(state: ServableState) -> None:
        if state.manager_state is END:
            sequencer.reach("end")

    env.monitor.listen(lambda event: hear(event.event))
    env.aspire("M")
    env.manager.step()
    sequencer.wait_reached("end")
    assert not env.manager.is_idle
    sequencer.open("end")
    env.settle()
    assert env.manager.is_idle
    assert env.close()


def test_action_kinds_are_two() -> None:
    """Policies can only load and unload."""
    assert {kind.value for kind in ActionKind} == {"load", "unload"}
    assert HarnessState.NEW.value == "new"


class SameFiles(FakeLoader):
    """A loader that knows which files it loads: equal to others of the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameFiles) and other.id == self.id

    __hash__ = None  # type: ignore[assignment]


def test_version_that_comes_back_in_time_goes_on_serving(empty: Environment) -> None:
    """A rollback to what still serves loads nothing, if the loader is the same."""
    first = SameFiles(ServableId("S3", 1), log=empty.log)
    empty.aspire("S3", first)
    empty.settle()
    bad = empty.loader("S3", 2, errors=[InvalidArgument("corrupt")])
    empty.aspire("S3", bad)
    empty.settle()
    assert empty.available("S3") == (1,)
    again = SameFiles(ServableId("S3", 1), log=empty.log)
    empty.aspire("S3", again, reason="edit: specific(1)")
    empty.settle()
    assert empty.available("S3") == (1,)
    assert (first.num_loads, first.num_unloads, again.num_loads) == (1, 0, 0)
    empty.aspire("S3")
    empty.settle()
    assert first.num_unloads == 1


def test_load_that_waits_for_memory_goes_on_when_there_is_room() -> None:
    """A step that makes room also decides the loads that waited for it."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.aspire("big", env.loader("big", 1, ram_bytes=10))
        env.settle()
        handle = env.manager.acquire(ServableRequest.latest("big"))
        env.aspire("big")
        env.settle()
        env.aspire("small", env.loader("small", 1, ram_bytes=5))
        env.settle()
        assert env.available("small") == ()
        handle.release()
        env.settle()
        assert env.available("small") == (1,)
        assert env.close()


def test_what_took_more_than_there_was_is_loaded_once_there_is_room() -> None:
    """By then its real size is known; another loader loads it, as each loads only once."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.aspire("a", env.loader("a", 1, ram_bytes=4))
        env.settle()
        large = env.loader("b", 1, ram_bytes=1, loaded_bytes=8)
        env.aspire("b", large)
        env.settle()
        assert env.available("b") == ()
        assert env.log.resident == [ServableId("a", 1)]
        env.aspire("c", env.loader("c", 1, ram_bytes=5))
        env.settle()
        env.aspire("c")
        env.settle()
        assert env.available("b") == ()
        env.aspire("a")
        env.settle()
        assert env.available("b") == (1,)
        assert large.num_loads == large.num_unloads == 1
        assert env.close()


def test_what_takes_a_little_more_than_expected_stays() -> None:
    """With a limit as tight as the status says, either every swap succeeds or none does."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(1000))
        env.aspire("a", env.loader("a", 1, ram_bytes=500, loaded_bytes=501))
        env.aspire("b", env.loader("b", 1, ram_bytes=480, loaded_bytes=510))
        env.settle()
        assert env.available("a") == env.available("b") == (1,)
        assert env.close()


class Gone(FakeLoader):
    """Of a version whose files went since."""

    @property
    def make_another(self) -> Callable[[], FakeLoader]:
        """What raises why there is none."""

        def make() -> FakeLoader:
            raise DataLoss("its files are gone")

        return make


def test_what_cannot_be_tried_again_holds_up_nobody() -> None:
    """Later versions of the same servable are planned and loaded."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.aspire("a", env.loader("a", 1, ram_bytes=4))
        env.settle()
        env.aspire(
            "b", Gone(ServableId("b", 1), ram_bytes=1, loaded_bytes=8, log=env.log)
        )
        env.settle()
        env.aspire("a")
        env.settle()
        assert env.available("b") == ()
        env.aspire("b", env.loader("b", 2, ram_bytes=1))
        env.settle()
        assert env.available("b") == (2,)
        assert env.close()


def test_what_went_for_a_version_that_takes_too_much_comes_back() -> None:
    """If the new version takes too much, the old one, which fitted, serves again."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.manager.set_transition_policy("m", resource_preserving)
        env.aspire("m", env.loader("m", 1, ram_bytes=6))
        env.settle()
        env.aspire("m", env.loader("m", 2, ram_bytes=1, loaded_bytes=11))
        env.settle()
        assert env.available("m") == (1,)
        assert env.close()


def test_status_of_a_load_tells_attempts_pauses_and_durations() -> None:
    """It says what states do not: how often it failed, why, and when it is tried again."""
    env = Environment(
        POOLS[0],
        options=AspiredVersionsManagerOptions(
            retry=RetryOptions(max_num_retries=3, interval_s=8.0),
            release_memory=None,
        ),
        tracker=ResourceTracker.ram(100),
    )
    loader = env.loader("m", 1, errors=[Unavailable("slow store")], ram_bytes=7)
    env.aspire("m", loader)
    env.settle()
    status = env.manager.load_status(ServableId("m", 1))
    assert status is not None
    assert status.num_failures == 1
    assert str(status.error) == "UNAVAILABLE: slow store"
    assert status.next_attempt_s == env.clock.now() + 8.0
    assert status.duration_s is None
    env.clock.advance(8.0)
    env.settle()
    status = env.manager.load_status(ServableId("m", 1))
    assert status is not None
    assert (status.next_attempt_s, status.error) == (None, None)
    assert status.duration_s == 0.0
    assert status.reserved == ResourceAllocation.ram(7)
    assert env.manager.load_status(ServableId("m", 2)) is None
    assert env.close()


def test_what_was_taken_in_shows_in_the_states(empty: Environment) -> None:
    """Whoever waits for the result of a config need not guess whether more is to come."""
    seen: list[ManagerState | None] = []
    empty.manager.on_taken_in(lambda: seen.append(empty.state("m", 1)))
    assert empty.manager.has_taken_in_all
    empty.aspire("m", 1)
    assert not empty.manager.has_taken_in_all
    empty.settle()
    assert empty.manager.has_taken_in_all
    assert seen == [ManagerState.START]


def test_a_load_that_hangs_holds_up_no_other() -> None:
    """A dead mount affects only its own version, even if one thread loads everything."""
    env = Environment(Pools(1, 1))
    sequencer = Sequencer()
    hanging = env.loader("a", 1, on_load=lambda: sequencer.reach("load"))
    env.aspire("a", hanging)
    env.manager.step()
    sequencer.wait_reached("load", 1)
    loaded = threading.Event()
    env.aspire("b", env.loader("b", 1, on_load=loaded.set))
    due_s = env.manager.step()
    assert due_s is not None
    assert env.state("b", 1) is ManagerState.START
    env.clock.advance(due_s - env.clock.now())
    env.manager.step()
    (state,) = env.monitor.version_states("a")
    assert (state.manager_state, state.is_late) == (ManagerState.LOADING, True)
    assert "nobody waits for it" in state.note
    assert loaded.wait(10.0)
    sequencer.open("load")
    env.settle()
    (state,) = env.monitor.version_states("a")
    assert (state.manager_state, state.is_late) == (ManagerState.AVAILABLE, False)
    assert env.close()


# -- what comes back ---------------------------------------------------------------------


def saving(pools: Pools = POOLS[0]) -> Environment:
    """Servable "m" with version 1 available, which is unloaded before others load."""
    env = Environment(pools)
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", 1)
    env.settle()
    return env


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_what_was_unloaded_for_a_version_that_fails_comes_back(pools: Pools) -> None:
    """Unloading first causes a gap but does not end the service; two are never loaded."""
    env = saving(pools)
    before = len(env.events())
    for number in (2, 3):
        bad = env.loader("m", number, errors=[InvalidArgument("corrupt")])
        env.aspire("m", bad)
        env.settle()
        assert env.available("m") == (1,)
    assert env.log.max_num_resident["m"] == 1
    assert [str(env.error("m", number)) for number in (3, 2, 1)] == [
        "INVALID_ARGUMENT: corrupt",
        "INVALID_ARGUMENT: corrupt",
        "None",
    ]
    state = env.monitor.state(ServableId("m", 1))
    assert state is not None
    assert state.reason == (
        "version 3 failed, for which it was unloaded; it serves meanwhile"
    )
    assert env.events()[before:][:9] == [
        ("m/2", "START"),
        ("m/1", "UNLOADING"),
        ("m/1", "END"),
        ("m/2", "LOADING"),
        ("m/2", "END"),
        ("m/1", "START"),
        ("m/1", "LOADING"),
        ("m/1", "AVAILABLE"),
        ("m/3", "START"),
    ]
    env.aspire("m", 4)
    env.settle()
    assert env.available("m") == (4,)
    assert env.log.max_num_resident["m"] == 1
    assert env.close()
    assert env.log.resident == []


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_nothing_goes_for_a_version_that_is_seen_to_be_damaged(pools: Pools) -> None:
    """Damage that shows without loading the version causes no gap."""
    env = saving(pools)
    before = len(env.events())
    env.aspire("m", env.loader("m", 2, estimate_errors=[DataLoss("cut off")]))
    env.settle()
    assert env.events()[before:] == [("m/2", "START"), ("m/2", "END")]
    assert str(env.error("m", 2)) == "DATA_LOSS: cut off"
    assert env.available("m") == (1,)
    # What may pass by itself is the load's to find out.
    env.aspire("m", env.loader("m", 3, estimate_errors=[Unavailable("busy")]))
    env.settle()
    assert env.available("m") == (3,)
    assert env.log.max_num_resident["m"] == 1
    assert env.close()


def test_what_fails_to_come_back_is_not_tried_for_ever() -> None:
    """If the stand-in is gone from the disk, it ends with an error and is not retried."""
    env = Environment(POOLS[0])
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", env.loader("m", 1, errors=[None, InvalidArgument("gone")]))
    env.settle()
    env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("corrupt")]))
    env.settle()
    assert env.available("m") == ()
    assert str(env.error("m", 1)) == "INVALID_ARGUMENT: gone"
    assert env.log.count("load", ServableId("m", 1)) == 2
    # Another that fails is another occasion.
    env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("corrupt")]))
    env.settle()
    assert env.available("m") == (1,)
    assert env.close()


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_a_version_that_failed_is_tried_again_by_request(pools: Pools) -> None:
    """A failed version is tried again with all retries; healthy ones are left alone."""
    env = Environment(
        pools,
        options=AspiredVersionsManagerOptions(retry=NO_RETRY, release_memory=None),
    )
    env.aspire("m", 1)
    env.settle()
    env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("no service")]))
    env.settle()
    before = len(env.events())
    assert env.manager.failed_versions("m") == {2}
    env.manager.try_again("m", {1, 2, 9})
    assert not env.manager.has_taken_in_all
    env.settle()
    assert env.manager.has_taken_in_all
    assert env.available("m") == (2,)
    assert env.events()[before:] == [
        ("m/2", "START"),
        ("m/2", "LOADING"),
        ("m/2", "AVAILABLE"),
        ("m/1", "UNLOADING"),
        ("m/1", "END"),
    ]
    state = env.monitor.state(ServableId("m", 2))
    assert state is not None
    assert "tried again by request" in state.reason
    assert env.manager.failed_versions("m") == frozenset()
    assert env.close()


def test_a_pause_between_attempts_ends_by_request() -> None:
    """Once the fault is mended, nobody has to wait a minute for the next attempt."""
    env = patient()
    env.aspire("n", env.loader("n", 1, errors=[Unavailable("busy")]))
    env.settle()
    assert env.manager.failed_versions("n") == {1}
    env.manager.try_again("n", {1})
    env.settle()
    assert env.available("n") == (1,)
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")]))
    env.settle()
    assert env.available("m") == (1,)  # stands in until the next attempt
    env.manager.try_again("m", {2})
    env.settle()
    assert env.available("m") == (2,)
    env.clock.advance(100.0)
    env.settle()
    assert env.log.count("load", ServableId("m", 2)) == 2
    assert env.close()


def test_a_version_that_serves_with_a_fault_is_loaded_anew_by_request() -> None:
    """Crashes may have been another's fault; the old one serves until the new one can."""
    env = Environment(POOLS[0])
    env.aspire("m", 1)
    env.settle()
    env.manager.report_servable_error(
        ServableId("m", 1), FailedPrecondition("quarantined")
    )
    assert env.manager.failed_versions("m") == {1}
    env.manager.try_again("m", {1})
    env.settle()
    assert env.available("m") == (1,)
    assert env.error("m", 1) is None
    assert env.log.count("load", ServableId("m", 1)) == 2
    assert env.log.count("unload", ServableId("m", 1)) == 1
    env.aspire("m", 1)
    env.settle()
    assert env.log.count("load", ServableId("m", 1)) == 2
    assert env.close()


def patient(pools: Pools = POOLS[0]) -> Environment:
    """Returns a manager that unloads m/1 for others, and tries those again as a server does."""
    env = Environment(
        pools,
        options=AspiredVersionsManagerOptions(
            retry=RetryOptions(max_num_retries=2), release_memory=None
        ),
    )
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", 1)
    env.settle()
    return env


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_a_version_that_may_mend_stands_back_between_its_attempts(pools: Pools) -> None:
    """An attempt takes away what serves, so that returns at once and attempts are rare."""
    env = patient(pools)
    newest = ServableId("m", 2)
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")] * 2))
    env.settle()
    assert env.available("m") == (1,)  # no pause without anything that serves
    assert str(env.error("m", 2)) == "UNAVAILABLE: busy"
    status = env.manager.load_status(newest)
    assert status is not None
    assert status.next_attempt_s == env.clock.now() + 60.0
    env.clock.advance(59.0)
    env.settle()
    assert env.log.count("load", newest) == 1
    env.clock.advance(1.0)
    env.settle()
    assert env.log.count("load", newest) == 2
    assert env.available("m") == (1,)
    status = env.manager.load_status(newest)
    assert status is not None
    assert (status.num_failures, status.next_attempt_s) == (2, env.clock.now() + 120.0)
    env.clock.advance(120.0)
    env.settle()
    assert env.available("m") == (2,)
    assert env.error("m", 2) is None
    assert env.log.max_num_resident["m"] == 1
    assert env.close()


def test_a_version_that_does_not_mend_is_given_up_after_its_retries() -> None:
    """The serving version is unloaded for it as often as the flag says, and no more."""
    env = patient()
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")] * 9))
    for _ in range(50):
        env.settle()
        env.clock.advance(60.0)
    assert env.available("m") == (1,)
    assert env.log.count("load", ServableId("m", 2)) == 3
    status = env.manager.load_status(ServableId("m", 2))
    assert status is not None
    assert status.next_attempt_s is None
    assert env.close()


def test_what_stands_back_for_nothing_is_tried_again_soon() -> None:
    """If the old version cannot come back either, another attempt takes nothing away."""
    env = Environment(
        POOLS[0],
        options=AspiredVersionsManagerOptions(release_memory=None),
    )
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", env.loader("m", 1, errors=[None, DataLoss("gone")]))
    env.settle()
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")]))
    assert env.settle() == env.clock.now() + 1.0
    env.clock.advance(1.0)
    env.settle()
    assert env.available("m") == (2,)
    assert env.close()


def test_a_first_version_has_nothing_to_stand_back_for() -> None:
    """It is tried again after seconds, because nothing else could serve."""
    env = patient()
    env.aspire("n", env.loader("n", 1, errors=[Unavailable("busy")]))
    env.manager.set_transition_policy("n", resource_preserving)
    assert env.settle() == env.clock.now() + 1.0
    assert env.state("n", 1) is ManagerState.LOADING
    env.clock.advance(1.0)
    env.settle()
    assert env.available("n") == (1,)
    assert env.close()


def test_who_is_no_longer_wanted_is_not_tried_again() -> None:
    """A planned attempt is dropped if another version is aspired or the manager closes."""
    for wanted in ([3], [1], []):
        env = patient()
        env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")]))
        env.settle()
        env.aspire("m", *wanted)
        env.settle()
        env.clock.advance(100.0)
        env.settle()
        assert env.available("m") == tuple(wanted)
        assert env.log.count("load", ServableId("m", 2)) == 1
        assert env.close()


def test_what_stands_in_makes_way_while_it_loads() -> None:
    """A new version, or closing, need not wait for a version that only stands in."""
    for wanted in ([3], []):
        env = Environment(POOLS[3])
        env.manager.set_transition_policy("m", resource_preserving)
        sequencer = Sequencer()
        points = iter(("first", "again"))
        sequencer.open("first")

        def load(points: Iterator[str] = points, at: Sequencer = sequencer) -> None:
            at.reach(next(points))

        env.aspire("m", env.loader("m", 1, on_load=load))
        env.settle()
        env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("corrupt")]))
        while not sequencer.num_reached("again"):
            env.manager.step()
        env.aspire("m", *wanted)
        env.manager.step()
        sequencer.open("again")
        env.settle()
        assert env.available("m") == tuple(wanted)
        assert env.log.max_num_resident["m"] == 1
        error = env.error("m", 1)
        assert error is not None
        assert error.code is Code.CANCELLED
        assert env.close()


def test_old_contents_come_back_for_new_ones_that_fail() -> None:
    """Replaced contents are unloaded first, too; the state says why the old ones serve."""
    env = saving()
    before = len(env.events())
    env.aspire("m", env.loader("m", 1, errors=[InvalidArgument("no such device")]))
    env.settle()
    assert env.available("m") == (1,)
    assert env.state("m", 1) is A
    assert str(env.error("m", 1)) == "INVALID_ARGUMENT: no such device"
    assert [state for _, state in env.events()[before:]] == [
        "AVAILABLE",  # changed, says its reason
        "UNLOADING",
        "END",
        "START",
        "LOADING",
        "END",
        "START",  # what it was before comes back, like any other
        "LOADING",
        "AVAILABLE",
    ]
    env.aspire("m", env.loader("m", 1, value="mended"))
    env.settle()
    assert env.error("m", 1) is None
    with env.manager.acquire(ServableRequest.latest("m")) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "mended"
    assert env.log.max_num_resident["m"] == 1
    assert env.close()


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_what_callers_were_told_comes_back_though_another_version_serves(
    pools: Pools,
) -> None:
    """Two versions are aspired, and the one that was to replace it failed."""
    env = Environment(pools)
    heirs: dict[int, list[int]] = {}
    env.manager.set_transition_policy(
        "m", standing_in(resource_preserving, lambda: heirs)
    )
    env.aspire("m", 1)
    env.settle()
    heirs[1] = [3]
    bad = env.loader("m", 3, errors=[InvalidArgument("corrupt")])
    env.aspire("m", 2, bad)
    env.settle()
    assert env.available("m") == (1, 2)
    heirs[1] = [4]
    env.aspire("m", 2, 4)
    env.settle()
    assert env.available("m") == (2, 4)
    assert env.log.max_num_resident["m"] == 2
    assert env.close()
    assert env.log.resident == []


def test_what_comes_back_is_what_went_last() -> None:
    """An earlier failure beside a version that served brings nothing back."""
    env = saving()
    old = env.loader("m", 3, errors=[InvalidArgument("corrupt")])
    env.aspire("m", 2, old)
    env.settle()
    assert env.available("m") == (2,)
    env.aspire("m", old, env.loader("m", 4, errors=[InvalidArgument("corrupt")]))
    env.settle()
    assert env.available("m") == (2,)
    assert env.close()


# -- what hangs --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["load", "unload"])
def test_a_version_replaced_while_its_old_self_hangs_is_loaded(what: str) -> None:
    """A dead mount delays the old contents, not the new ones under the same number."""
    env = Environment(Pools(1, 1))
    sequencer = Sequencer()
    hang = {f"on_{what}": lambda: sequencer.reach("it")}
    env.aspire("m", env.loader("m", 1, **hang))
    env.manager.step()
    if what == "unload":
        env.settle()
        env.aspire("m")
        env.manager.step()
    sequencer.wait_reached("it", 1)
    env.aspire("m", env.loader("m", 1, value="new"))
    due_s = env.manager.step()
    assert due_s is not None
    assert env.available("m") == ()
    env.clock.advance(due_s - env.clock.now())
    available = threading.Event()
    env.monitor.listen(
        lambda e: (
            available.set() if e.event.manager_state is ManagerState.AVAILABLE else None
        )
    )
    env.manager.step()
    assert available.wait(10.0)
    with env.manager.acquire(ServableRequest.latest("m")) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "new"
    before = len(env.events())
    sequencer.open("it")
    env.settle()
    assert env.events()[before:] == []
    assert env.error("m", 1) is None
    assert env.close()
    assert env.log.resident == []


# -- what is told of a version whose contents change -----------------------------------------


def test_what_took_a_versions_place_is_told_of_alone() -> None:
    """Pins on the old contents do not hide what becomes of the new ones."""
    env = Environment(POOLS[0])
    env.aspire("m", 1)
    env.settle()
    old = env.manager.acquire(ServableRequest.latest("m"))
    env.aspire("m", env.loader("m", 1, value="new"))
    env.settle()
    new = env.manager.acquire(ServableRequest.latest("m"))
    before = len(env.events())
    env.aspire("m")
    env.settle()
    assert env.events()[before:] == [("m/1", "UNLOADING")]
    old.release()
    env.settle()
    assert env.events()[before:] == [("m/1", "UNLOADING")]
    new.release()
    env.settle()
    assert env.events()[before:] == [("m/1", "UNLOADING"), ("m/1", "END")]
    assert env.close()


def test_contents_that_are_gone_before_the_old_ones_end_once() -> None:
    """While the old contents are still pinned, nothing more is published of them."""
    env = Environment(POOLS[0])
    env.aspire("m", 1)
    env.settle()
    old = env.manager.acquire(ServableRequest.latest("m"))
    env.aspire("m", env.loader("m", 1, value="new"))
    env.settle()
    before = len(env.events())
    env.aspire("m")
    env.settle()
    old.release()
    env.settle()
    assert env.events()[before:] == [("m/1", "UNLOADING"), ("m/1", "END")]
    assert env.close()


def test_nothing_takes_a_versions_place_before_its_end_is_told() -> None:
    """A version's end is told, and its successor begins, after its memory is free."""
    sequencer = Sequencer()
    env = Environment(
        POOLS[3],
        options=AspiredVersionsManagerOptions(
            retry=RetryOptions(max_num_retries=0),
            release_memory=lambda: sequencer.reach("release"),
        ),
    )
    env.aspire("m", 1)
    env.settle()
    before = len(env.events())
    env.aspire("m")
    while not sequencer.num_reached("release"):
        env.manager.step()
    env.aspire("m", env.loader("m", 1, value="new"))
    env.manager.step()
    env.executors[0].wait_idle()  # type: ignore[attr-defined]
    assert [state for _, state in env.events()[before:]] == ["UNLOADING"]
    sequencer.open("release")
    env.settle()
    assert [state for _, state in env.events()[before:]] == [
        "UNLOADING",
        "END",
        "START",
        "LOADING",
        "AVAILABLE",
    ]
    assert env.close()


def test_what_is_to_stand_in_makes_way_for_what_fits_at_last() -> None:
    """Otherwise they would wait for each other: one for memory, the other for its place."""
    tracker = ResourceTracker.ram(10)
    env = Environment(
        POOLS[0],
        options=AspiredVersionsManagerOptions(
            retry=RetryOptions(max_num_retries=1, interval_s=1.0), release_memory=None
        ),
        tracker=tracker,
    )
    env.manager.set_transition_policy("m", resource_preserving)
    errors = [None, Unavailable("the archive does not answer")]
    env.aspire("m", env.loader("m", 1, ram_bytes=5, estimate_errors=errors))
    env.aspire("other", env.loader("other", 1, ram_bytes=3))
    env.settle()
    env.aspire("m", env.loader("m", 2, ram_bytes=5, loaded_bytes=9))
    env.settle()
    assert isinstance(env.error("m", 2), ResourceExhausted)
    assert env.available("m") == ()  # the old one is asked again what it takes
    env.aspire("other")
    env.settle()
    env.clock.advance(1.0)
    env.settle()
    assert env.available("m") == (2,)
    assert env.log.max_num_resident["m"] == 1
    assert env.close()
    assert tracker.used.describe() == "nothing"
