"""managers.versions.version_table."""

from __future__ import annotations

from managers.serving_map import ServingMap
from managers.versions.harness_state import HarnessState
from managers.versions.version_table import VersionTable
from tfs.core.event_bus import EventBus
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.source import ServableData
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader

ID = ServableId("digits", 1)


def test_a_note_is_published_though_the_manager_is_still_at_it() -> None:
    """Who hears of AVAILABLE and adds a note at once is quicker than the load's thread."""
    clock = FakeClock()
    bus: EventBus[ServableState] = EventBus(clock)
    states: list[ServableState] = []
    bus.subscribe(lambda event: states.append(event.event))
    table = VersionTable(bus, clock)
    version = table.manage(ServableData(ID, FakeLoader(ID)))
    states.clear()
    version.request_load()
    version.approve_load()
    version.transition(HarnessState.LOADING)
    table.annotate(ID, note="too early")
    assert states == []
    table.make_available(version, ServableHandle(ID, object()), ServingMap())
    table.annotate(ID, note="runs inline")
    assert [(s.manager_state, s.note) for s in states] == [
        (ManagerState.AVAILABLE, "too early"),
        (ManagerState.AVAILABLE, "runs inline"),
    ]
    version.transition(HarnessState.READY)
    version.request_unload()
    version.transition(HarnessState.QUIESCING)
    table.publish(version, ManagerState.UNLOADING)
    table.annotate(ID, note="too late")
    assert states[-1].manager_state is ManagerState.UNLOADING
    assert states[-1].note == ""  # how it was is no news of a version on its way out
