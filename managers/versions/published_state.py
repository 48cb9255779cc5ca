"""What observers are told of a version: its life as seen from outside."""

from __future__ import annotations

from typing import Final

from managers.versions.harness_state import END_STATES
from managers.versions.version import Version
from tfs.core.servable_state import ManagerState, ServableState

_MOVING: Final = (ManagerState.START, ManagerState.LOADING, ManagerState.UNLOADING)
_LATE: Final = (
    "it takes very long, and nobody waits for it any more: does its storage answer, or "
    "does its code hang?"
)


def published_state(
    version: Version, manager_state: ManagerState, wall_s: float
) -> ServableState:
    """Returns what to publish of a version when it enters a state now."""
    is_available = manager_state is ManagerState.AVAILABLE
    entered, entered_s, serves_since_s = version.published
    if entered is not manager_state or not entered_s:
        entered_s = wall_s
    # The state is published again when something is noted.
    since_s = entered_s
    if is_available:
        since_s = serves_since_s = serves_since_s or wall_s
    version.published = manager_state, entered_s, serves_since_s
    # Notes from the time when it served say nothing about its unload.
    is_leaving = manager_state in (ManagerState.UNLOADING, ManagerState.END)
    is_late = version.is_late and manager_state in _MOVING
    error = version.fault or version.heir_error if is_available else version.error
    return ServableState(
        id=version.id,
        manager_state=manager_state,
        error=error,
        reason=version.reason,
        since_s=since_s,
        resident_bytes=version.resident_bytes,
        note=_LATE if is_late else "" if is_leaving else version.note,
        is_late=is_late,
        is_faulty=is_available and version.fault is not None,
    )


def published_beside(version: Version, heir: Version, wall_s: float) -> ServableState:
    """Returns what to publish while a version serves and ``heir`` is to replace it."""
    now = heir.snapshot()
    progress = f"what was loaded before serves; replacement: {now.state.value}"
    return ServableState(
        id=version.id,
        manager_state=ManagerState.AVAILABLE,
        error=now.error or version.fault,
        reason=f"{heir.reason}; {progress}",
        since_s=version.published[2] or wall_s,
        resident_bytes=version.resident_bytes,
        note=version.note,  # it still runs where it did
        is_late=heir.is_late,
        is_changing=now.state not in END_STATES,
        is_faulty=version.fault is not None,
    )
