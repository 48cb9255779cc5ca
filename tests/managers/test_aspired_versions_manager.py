"""The manager against TensorFlow Serving's cases, and ours beyond them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.loading.load_admission import ResourceTracker
from managers.serving_map import Handle, ServingMap
from managers.transition_policy import (
    Action,
    TransitionPolicy,
    availability_preserving,
    resource_preserving,
)
from managers.versions.harness_state import HarnessSnapshot
from managers.versions.version import RetryOptions, Version
from managers.versions.version_table import VersionTable
from tests.managers.environment import POOLS, Environment, Pools
from tests.present import present
from tests.threads import run_together
from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Quarantined,
    Unavailable,
    Unknown,
)
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState
from tfs.testing.fake_loader import FakeServable
from tfs.testing.sequencer import Sequencer

A, END = ManagerState.AVAILABLE, ManagerState.END


def not_found(env: Environment, request: ServableRequest) -> bool:
    try:
        env.manager.acquire(request).release()
    except NotFound:
        return True
    return False


# -- §5.1, in upstream's order ---------------------------------------------------------


def test_aspired_error_is_replaced_by_a_good_payload(env: Environment) -> None:
    """ReloadAspiredError: ours always reloads, upstream only with its flag.

    ErroneousAspiredVersion upstream: until then it is not found.
    """
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


@pytest.mark.parametrize("policy", [availability_preserving, resource_preserving])
def test_a_quarantined_version_is_tried_again_after_pauses_that_double(
    policy: TransitionPolicy, empty: Environment
) -> None:
    """A minute, two, four, up to a quarter of an hour; after a good hour a minute again."""
    m1 = ServableId("m", 1)
    empty.manager.set_transition_policy("m", policy)
    empty.aspire("m", 1)
    empty.settle()
    for pause_s in (60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 0.0, 60.0):
        if not pause_s:
            empty.clock.advance(3601)
            continue
        empty.manager.report_servable_error(m1, Quarantined("crashed 3 times"))
        due_s = empty.settle()
        assert due_s == pytest.approx(empty.clock.now() + pause_s)
        assert present(empty.manager.load_status(m1)).next_attempt_s == due_s
        empty.clock.advance(pause_s - 1)
        empty.settle()
        assert isinstance(empty.error("m", 1), Quarantined)
        empty.clock.advance(1)
        empty.settle()
        assert empty.state("m", 1) is A
        assert empty.error("m", 1) is None
        assert empty.available("m") == (1,)


@pytest.mark.parametrize("policy", [availability_preserving, resource_preserving])
def test_a_load_can_tell_whether_another_version_answers_without_it(
    policy: TransitionPolicy,
) -> None:
    """One that serves, is about to, or made way and would come back."""
    covered: list[tuple[int, bool]] = []
    env = Environment(
        POOLS[0],
        options=AspiredVersionsManagerOptions(
            policy,
            pre_load_hook=lambda of: covered.append(
                (of.version, env.manager.is_covered(of))
            ),
            release_memory=None,
        ),
    )
    for versions in ((1,), (2,), (3, 4)):
        env.aspire("m", *versions)
        env.settle()
    assert covered == [(1, False), (2, True), (4, True), (3, True)]


def test_a_fault_found_while_loading_shows_once_the_version_serves(
    empty: Environment,
) -> None:
    """It is a fault of what is loaded, not of what serves under the same number."""
    fault = FailedPrecondition("fails on its own example")
    loader = empty.loader("m", 1)
    load = loader.load

    def load_and_fail(servable_id: ServableId) -> None:
        load(servable_id)
        empty.manager.report_servable_error(servable_id, fault, is_loading=True)

    loader.load = load_and_fail  # type: ignore[method-assign]
    empty.aspire("m", loader)
    empty.settle()
    state = present(empty.monitor.state(ServableId("m", 1)))
    assert (state.manager_state, state.error, state.is_faulty) == (A, fault, True)


@pytest.mark.parametrize("pools", [p for p in POOLS if p.num_load], ids=str)
def test_whoever_decides_takes_nothing_for_ready_that_cannot_be_requested(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision just before or after publication does not give up the old version."""
    env = Environment(pools)
    env.aspire("m", 1)
    env.settle()
    seen: list[Sequence[int]] = []
    make_available = VersionTable.make_available

    def decide() -> None:
        env.manager.set_transition_policy("m", None)  # something to decide about
        run_together(env.manager.step)  # while this thread loads and publishes
        seen.append(env.available("m"))

    def decide_around(
        table: VersionTable, version: Version, handle: Handle, serving_map: ServingMap
    ) -> None:
        decide()
        make_available(table, version, handle, serving_map)
        decide()

    monkeypatch.setattr(VersionTable, "make_available", decide_around)
    env.aspire("m", 2)
    env.settle()
    assert seen == [(1,), (1, 2)]
    assert env.available("m") == (2,)


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
    status = present(env.manager.load_status(ServableId("m", 1)))
    assert status.num_failures == 1
    assert str(status.error) == "UNAVAILABLE: slow store"
    assert status.next_attempt_s == env.clock.now() + 8.0
    assert status.duration_s is None
    env.clock.advance(8.0)
    env.settle()
    status = present(env.manager.load_status(ServableId("m", 1)))
    assert (status.next_attempt_s, status.error) == (None, None)
    assert status.duration_s == 0.0
    assert status.reserved == ResourceAllocation.ram(7)
    assert env.manager.load_status(ServableId("m", 2)) is None


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
    due_s = present(env.manager.step())
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
