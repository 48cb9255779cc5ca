"""tfs.server.process."""

from __future__ import annotations

from tfs.core.errors import FailedPrecondition
from tfs.core.event_bus import EventBus
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.process import Announcer
from tfs.testing.fake_clock import FakeClock

SCALE = ServableId("scale", 1)


def lines_for(*states: ServableState) -> list[str]:
    lines: list[str] = []
    bus: EventBus[ServableState] = EventBus(FakeClock())
    subscription = bus.subscribe(Announcer(lines.append).take)
    for state in states:
        bus.publish(state)
    subscription.close()
    return lines


def test_a_note_is_no_second_announcement() -> None:
    """What is found out about a version later does not make it available again."""
    assert lines_for(
        ServableState(SCALE, ManagerState.LOADING),
        ServableState(SCALE, ManagerState.AVAILABLE),
        ServableState(SCALE, ManagerState.AVAILABLE, note="runs in front"),
    ) == ["tfs: scale/1 is available"]


def test_a_version_that_comes_back_is_announced_again() -> None:
    """Unloading and loading once more is news."""
    assert (
        lines_for(
            ServableState(SCALE, ManagerState.AVAILABLE),
            ServableState(SCALE, ManagerState.UNLOADING),
            ServableState(SCALE, ManagerState.AVAILABLE),
        )
        == ["tfs: scale/1 is available"] * 2
    )


def test_a_quarantined_version_is_not_called_available() -> None:
    """A version that stays loaded but refuses requests says why."""
    fault = FailedPrecondition("crashed 3 times")
    assert lines_for(
        ServableState(SCALE, ManagerState.AVAILABLE),
        ServableState(SCALE, ManagerState.AVAILABLE, error=fault),
    ) == [
        "tfs: scale/1 is available",
        "tfs: scale/1 fails: FAILED_PRECONDITION: crashed 3 times",
    ]
