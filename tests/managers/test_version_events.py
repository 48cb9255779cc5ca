"""managers.version_events."""

from __future__ import annotations

from managers.harness_state import HarnessState
from managers.loader_harness import LoaderHarness
from managers.managed_version import ManagedVersion
from managers.retry import RetryOptions
from managers.serving_map import ServingMap
from managers.version_events import VersionEvents
from tfs.core.event_bus import EventBus
from tfs.core.servable_data import ServableData
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader

ID = ServableId("digits", 1)


def test_a_note_is_published_though_the_manager_is_still_at_it() -> None:
    """Who hears of AVAILABLE and adds a note at once is quicker than the load's thread."""
    clock = FakeClock()
    bus: EventBus[ServableState] = EventBus(clock)
    states: list[ServableState] = []
    bus.subscribe(lambda event: states.append(event.event))
    events = VersionEvents(bus, clock, lambda _: [])
    harness = LoaderHarness(
        ServableData(ID, FakeLoader(ID)), retry=RetryOptions(), clock=clock
    )
    managed = ManagedVersion(harness)
    harness.request_load()
    harness.approve_load()
    harness.transition(HarnessState.LOADING)
    events.annotate(managed, "too early", None)
    assert states == []
    events.make_available(managed, ServableHandle(ID, object()), ServingMap())
    events.annotate(managed, "runs inline", None)
    assert [(s.manager_state, s.note) for s in states] == [
        (ManagerState.AVAILABLE, "too early"),
        (ManagerState.AVAILABLE, "runs inline"),
    ]
    harness.transition(HarnessState.READY)
    harness.request_unload()
    harness.transition(HarnessState.QUIESCING)
    events.publish(managed, ManagerState.UNLOADING)
    events.annotate(managed, "too late", None)
    assert states[-1].manager_state is ManagerState.UNLOADING
    assert states[-1].note == ""  # how it was is no news of a version on its way out
