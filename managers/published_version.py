"""What observers know of a version: its note, its fault, and whether it began and ended."""

from __future__ import annotations

from typing import Final

from managers.harness_state import END_STATES
from managers.loader_harness import LoaderHarness
from tfs.core.errors import ServingError
from tfs.core.servable_state import ManagerState, ServableState

_MOVING: Final = (ManagerState.START, ManagerState.LOADING, ManagerState.UNLOADING)
_LATE: Final = (
    "it takes very long, and nobody waits for it any more: does its storage answer, or "
    "does its code hang?"
)


class PublishedVersion:
    """Makes the states of one harness, as they are published. VersionEvents guards it.

    Attributes:
        fault: What is wrong with it although it serves; None while it is well.
        heir_error: If it was unloaded for new contents of the same version and came
            back because these failed: why they failed. Otherwise None.
        note: What was found out about it, for people.
        resident_bytes: Memory measured for it; None before.
        is_started: Whether its published life has begun, usually with START.
        is_over: Whether its END was published, or would have been if there were no
            other generation.
        is_replaced: Whether a newer generation was published in its place; what becomes
            of this one is not published any more.

    """

    __slots__ = (
        "_entered",
        "_harness",
        "_since_s",
        "fault",
        "heir_error",
        "is_over",
        "is_replaced",
        "is_started",
        "note",
        "resident_bytes",
    )

    def __init__(self, harness: LoaderHarness) -> None:
        self._harness = harness
        self.fault: ServingError | None = None
        self.heir_error: ServingError | None = None
        self.note = ""
        self.resident_bytes: int | None = None
        self.is_started = False
        self.is_over = False
        self.is_replaced = False
        # The state that was asked for last, and when it was asked for first.
        self._entered = (ManagerState.START, 0.0)
        # When it first became AVAILABLE, seconds since the epoch.
        self._since_s: float | None = None

    def state(self, manager_state: ManagerState, wall_s: float) -> ServableState:
        """Returns what to publish of it when it enters a state now."""
        harness = self._harness
        is_available = manager_state is ManagerState.AVAILABLE
        if self._entered[0] is not manager_state or not self._entered[1]:
            self._entered = manager_state, wall_s
        # The state is published again when something is noted.
        since_s = self._entered[1]
        if is_available:
            since_s = self._since_s = self._since_s or wall_s
        # Notes from the time when it served say nothing about its unload.
        is_leaving = manager_state in (ManagerState.UNLOADING, ManagerState.END)
        is_late = harness.is_late and manager_state in _MOVING
        error = self.fault or self.heir_error if is_available else harness.error
        return ServableState(
            id=harness.id,
            manager_state=manager_state,
            error=error,
            reason=harness.reason,
            since_s=since_s,
            resident_bytes=self.resident_bytes,
            note=_LATE if is_late else "" if is_leaving else self.note,
            is_late=is_late,
            is_faulty=is_available and self.fault is not None,
        )

    def state_beside(self, heir: LoaderHarness, wall_s: float) -> ServableState:
        """Returns what to publish while it serves and ``heir`` is to replace it."""
        now = heir.snapshot()
        progress = f"what was loaded before serves; replacement: {now.state.value}"
        return ServableState(
            id=self._harness.id,
            manager_state=ManagerState.AVAILABLE,
            error=now.error or self.fault,
            reason=f"{heir.reason}; {progress}",
            since_s=self._since_s or wall_s,
            resident_bytes=self.resident_bytes,
            note=self.note,  # it still runs where it did
            is_late=heir.is_late,
            is_changing=now.state not in END_STATES,
            is_faulty=self.fault is not None,
        )
