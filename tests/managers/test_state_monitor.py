"""The monitor against TensorFlow Serving's cases, and its bounds."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace

import pytest

from managers.state_monitor import ServableStateMonitor, StateMonitorOptions
from tfs.core.errors import Internal
from tfs.core.event_bus import EventBus
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState
from tfs.testing.fake_clock import FakeClock

S = ManagerState
Reached = tuple[bool, dict[str, ManagerState]]


class World:
    """A monitor on a bus, and what it called back with."""

    def __init__(self, options: StateMonitorOptions | None = None) -> None:
        self.clock = FakeClock()
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(self.bus, clock=self.clock, options=options)
        self.reached: list[Reached] = []

    def publish(self, name: str, version: int, state: ManagerState) -> ServableState:
        event = ServableState(ServableId(name, version), state)
        self.bus.publish(event)
        return event

    def note(self, all_: bool, states: Mapping[ServableId, ManagerState]) -> None:
        self.reached.append((all_, {i.slashed: s for i, s in states.items()}))

    def notify(
        self, *requests: ServableRequest, goal: ManagerState = S.AVAILABLE
    ) -> None:
        self.monitor.notify_when_reached(requests, goal, self.note)


def test_states_are_kept_by_name_and_version() -> None:
    """A new id, version or name is added to what is known (AddingStates)."""
    world = World(StateMonitorOptions(max_num_log_events=9))
    monitor = world.monitor
    assert monitor.state(ServableId("a", 1)) is None
    assert monitor.version_states("a") == []
    first = world.publish("a", 1, S.START)
    second = world.publish("a", 2, S.AVAILABLE)
    other = world.publish("b", 7, S.LOADING)
    assert monitor.state(ServableId("a", 1)) == first
    assert monitor.state(ServableId("a", 3)) is None
    assert monitor.all_states() == {"a": [second, first], "b": [other]}
    assert [e.event for e in monitor.bounded_log()] == [first, second, other]


def test_later_states_overwrite_and_the_log_drops_the_oldest() -> None:
    """The last state counts; the log is as long as it may be (UpdatingStates)."""
    world = World(StateMonitorOptions(max_num_log_events=3))
    states = [world.publish("a", 1, s) for s in (S.START, S.LOADING, S.AVAILABLE)]
    states.append(replace(states[-1], error=Internal("crashed")))
    world.bus.publish(states[-1])
    assert world.monitor.state(ServableId("a", 1)) == states[-1]
    assert [e.event for e in world.monitor.bounded_log()] == states[1:]
    assert world.monitor.bounded_log()[0].time_s == world.clock.wall_s()


def test_log_is_empty_by_default() -> None:
    """Without a bound there is no log (DisableBoundedLogging)."""
    world = World()
    world.publish("a", 1, S.START)
    assert world.monitor.bounded_log() == []


def test_live_states_leave_out_what_ended() -> None:
    """Live is everything but END (GetLiveServableStates)."""
    world = World()
    live = world.publish("a", 1, S.UNLOADING)
    world.publish("a", 2, S.END)
    world.publish("b", 1, S.END)
    assert world.monitor.live_states() == {"a": [live]}


def test_available_versions_leave_out_what_cannot_be_requested() -> None:
    """Available is AVAILABLE and nothing else (GetAvailableServableStates)."""
    world = World()
    world.publish("a", 1, S.AVAILABLE)
    world.publish("a", 2, S.UNLOADING)
    world.publish("a", 3, S.END)
    world.publish("b", 3, S.LOADING)
    assert world.monitor.available_versions("a") == {1}
    assert world.monitor.available_versions("b") == set()
    assert world.monitor.available_versions("c") == set()


def test_versions_come_highest_first() -> None:
    """Readers see the newest version first (VersionMapDescendingOrder)."""
    world = World()
    for version in (3, 1, 7, 2):
        world.publish("a", version, S.AVAILABLE)
    states = world.monitor.version_states("a")
    assert [state.id.version for state in states] == [7, 3, 2, 1]


def test_ended_versions_can_be_forgotten() -> None:
    """Forgetting drops END and keeps what lives (ForgetUnloadedServableStates)."""
    world = World()
    live = world.publish("a", 1, S.AVAILABLE)
    world.publish("a", 2, S.END)
    world.publish("b", 1, S.END)
    world.monitor.forget_ended("b")
    assert world.monitor.version_states("b") == []
    world.monitor.forget_ended()
    assert world.monitor.all_states() == {"a": [live]}
    world.publish("b", 1, S.START)
    assert world.monitor.version_states("b")[0].manager_state is S.START


def test_ended_versions_are_forgotten_by_age() -> None:
    """A name remembers its newest endings only, and a server its newest names."""
    options = StateMonitorOptions(max_num_ended_per_name=2, max_num_ended_names=1)
    world = World(options)
    world.publish("a", 9, S.AVAILABLE)
    for version in (1, 2, 3):
        world.publish("a", version, S.END)
    versions = [s.id.version for s in world.monitor.version_states("a")]
    assert versions == [9, 3, 2]
    world.publish("b", 1, S.END)
    world.publish("c", 1, S.END)
    assert sorted(world.monitor.all_states()) == ["a", "c"]
    world.publish("a", 9, S.END)
    assert sorted(world.monitor.all_states()) == ["a"]


def test_version_that_comes_back_is_no_longer_among_the_ended() -> None:
    """A re-aspired version lives again and is not dropped for its age."""
    world = World(StateMonitorOptions(max_num_ended_per_name=1))
    world.publish("a", 1, S.END)
    world.publish("a", 1, S.AVAILABLE)
    world.publish("a", 2, S.END)
    world.publish("a", 3, S.END)
    assert [s.id.version for s in world.monitor.version_states("a")] == [3, 1]


def test_remembering_no_endings_still_decides_waits() -> None:
    """With a bound of 0 an ending is told to who waits, then gone."""
    world = World(StateMonitorOptions(max_num_ended_per_name=0))
    world.notify(ServableRequest.specific("a", 1))
    world.publish("a", 1, S.START)
    world.publish("a", 1, S.END)
    assert world.reached == [(False, {"a/1": S.END})]
    assert world.monitor.all_states() == {}


def test_waiting_for_nothing_is_over_at_once() -> None:
    """No requests: reached (NotifyWhenServablesReachState: ZeroServables)."""
    world = World()
    world.notify()
    assert world.reached == [(True, {})]


def test_specific_version_is_reached_when_it_is_available() -> None:
    """Other versions and states change nothing (SpecificAvailable)."""
    world = World()
    world.notify(ServableRequest.specific("a", 2))
    world.publish("a", 1, S.AVAILABLE)
    world.publish("a", 2, S.LOADING)
    assert world.reached == []
    world.publish("a", 2, S.AVAILABLE)
    assert world.reached == [(True, {"a/2": S.AVAILABLE})]


def test_specific_version_that_ends_is_not_reached() -> None:
    """END decides a wait for AVAILABLE negatively (SpecificError)."""
    world = World()
    world.notify(ServableRequest.specific("a", 2))
    world.publish("a", 2, S.END)
    assert world.reached == [(False, {"a/2": S.END})]


def test_latest_is_reached_by_any_version() -> None:
    """Whichever version gets there first decides (ServableLatestAvailable)."""
    world = World()
    world.publish("a", 2, S.END)
    world.publish("a", 3, S.LOADING)
    world.notify(ServableRequest.latest("a"))
    assert world.reached == []
    world.publish("a", 1, S.AVAILABLE)
    assert world.reached == [(True, {"a/1": S.AVAILABLE})]


def test_latest_fails_when_every_version_ended() -> None:
    """Only when nothing is left to hope for (LatestError)."""
    world = World()
    world.publish("a", 1, S.LOADING)
    world.publish("a", 2, S.LOADING)
    world.notify(ServableRequest.latest("a"))
    world.publish("a", 2, S.END)
    assert world.reached == []
    world.publish("a", 1, S.END)
    assert world.reached == [(False, {"a/2": S.END})]


def test_mixed_requests_are_all_waited_for() -> None:
    """Specific and latest requests together (FullFunctionality)."""
    world = World()
    world.publish("a", 1, S.AVAILABLE)
    world.notify(
        ServableRequest.latest("a"),
        ServableRequest.specific("b", 2),
        ServableRequest.specific("b", 3),
        ServableRequest.earliest("c"),
    )
    world.publish("b", 2, S.AVAILABLE)
    world.publish("b", 3, S.END)
    assert world.reached == []
    world.publish("c", 9, S.AVAILABLE)
    assert world.reached == [
        (
            False,
            {"a/1": S.AVAILABLE, "b/2": S.AVAILABLE, "b/3": S.END, "c/9": S.AVAILABLE},
        )
    ]


def test_notification_comes_once() -> None:
    """What happens later is not told again (OnlyNotifiedOnce)."""
    world = World()
    world.notify(ServableRequest.specific("a", 1))
    world.publish("a", 1, S.AVAILABLE)
    world.publish("a", 1, S.UNLOADING)
    world.publish("a", 1, S.AVAILABLE)
    assert len(world.reached) == 1


def test_who_was_told_is_forgotten() -> None:
    """A server that waits for every reload would otherwise keep what each waited with."""
    world = World()

    class Heard:
        def __call__(self, _: bool, __: object) -> None:
            """Hears it."""

    heard = Heard()
    is_alive = weakref.ref(heard)
    request = ServableRequest.specific("a", 1)
    world.monitor.notify_when_reached([request], S.AVAILABLE, heard)
    del heard
    assert is_alive() is not None
    world.publish("a", 1, S.AVAILABLE)
    gc.collect()
    assert is_alive() is None


def test_closed_waiter_hears_nothing() -> None:
    """A wait that was given up is over."""
    world = World()
    request = ServableRequest.specific("a", 1)
    waiter = world.monitor.notify_when_reached([request], S.AVAILABLE, world.note)
    waiter.close()
    waiter.close()
    world.publish("a", 1, S.AVAILABLE)
    assert world.reached == []


def test_blocking_wait_returns_what_was_reached() -> None:
    """A thread sleeps until it is decided.

    WaitUntilServablesReachStateFullFunctionality upstream.
    """
    world = World()
    requests = [ServableRequest.specific("a", 1), ServableRequest.latest("b")]
    outcome: list[tuple[bool, Mapping[ServableId, ManagerState]]] = []
    thread = threading.Thread(
        target=lambda: outcome.append(
            world.monitor.wait_until_reached(requests, S.AVAILABLE)
        )
    )
    thread.start()
    world.clock.block_until_sleepers(1)
    world.publish("a", 1, S.AVAILABLE)
    world.publish("b", 4, S.AVAILABLE)
    thread.join()
    assert outcome == [
        (True, {ServableId("a", 1): S.AVAILABLE, ServableId("b", 4): S.AVAILABLE})
    ]


def test_blocking_wait_ends_at_its_deadline() -> None:
    """After the deadline: not reached, and what was decided until then."""
    world = World()
    requests = [ServableRequest.specific("a", 1), ServableRequest.latest("b")]
    world.publish("a", 1, S.AVAILABLE)
    outcome: list[tuple[bool, Mapping[ServableId, ManagerState]]] = []
    deadline_s = world.clock.now() + 5.0
    thread = threading.Thread(
        target=lambda: outcome.append(
            world.monitor.wait_until_reached(requests, S.AVAILABLE, deadline_s)
        )
    )
    thread.start()
    world.clock.block_until_sleepers(1)
    world.clock.advance(5.0)
    thread.join()
    assert outcome == [(False, {ServableId("a", 1): S.AVAILABLE})]
    world.publish("b", 1, S.AVAILABLE)  # the waiter is gone: nothing happens


def test_listener_sees_every_event_after_it_is_known() -> None:
    """A listener that looks the version up finds the event's own state (Notify)."""
    world = World()
    seen: list[bool] = []
    stop = world.monitor.listen(
        lambda e: seen.append(world.monitor.state(e.event.id) == e.event)
    )
    world.publish("a", 1, S.START)
    world.publish("a", 1, S.LOADING)
    stop()
    stop()
    world.publish("a", 1, S.AVAILABLE)
    assert seen == [True, True]


def test_listener_that_raises_harms_nobody() -> None:
    """One subscriber's fault is logged; state and other listeners go on."""
    world = World()
    seen: list[ManagerState] = []

    def broken(_: object) -> None:
        raise RuntimeError("bug")

    world.monitor.listen(broken)
    world.monitor.listen(lambda e: seen.append(e.event.manager_state))
    world.publish("a", 1, S.AVAILABLE)
    assert seen == [S.AVAILABLE]


def test_closed_monitor_keeps_what_it_knows() -> None:
    """After close() nothing new comes in and everything stays readable."""
    world = World()
    world.publish("a", 1, S.AVAILABLE)
    world.monitor.close()
    world.monitor.close()
    world.publish("a", 1, S.END)
    assert world.monitor.version_states("a")[0].manager_state is S.AVAILABLE


@pytest.mark.parametrize(
    "name", ["max_num_log_events", "max_num_ended_per_name", "max_num_ended_names"]
)
def test_negative_bound_is_refused(name: str) -> None:
    """Options are checked when they are made."""
    with pytest.raises(ValueError, match=name):
        StateMonitorOptions(**{name: -1})
