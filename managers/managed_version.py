"""One managed version: its harness, its handle, and what each part keeps about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import END_STATES, HarnessState
from managers.load_status import LoadStatus
from managers.loader_harness import LoaderHarness
from managers.serving_map import Handle
from tfs.core.errors import ServingError
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_state import ManagerState, ServableState

Done: TypeAlias = Callable[[ServingError | None], None]
"""Takes how a load or unload ended; called once, on any thread, under no lock."""

_MOVING: Final = (ManagerState.START, ManagerState.LOADING, ManagerState.UNLOADING)
_LATE: Final = (
    "it takes very long, and nobody waits for it any more: does its storage answer, or "
    "does its code hang?"
)


class ManagedVersion:
    """A harness and what else is known of the version. Each attribute names its writer.

    Attributes:
        harness: The life of its loader.
        reason: Why it is managed, for people. Never changes.
        handle: What requests pin; None until it is loaded. Writer: VersionEvents.
        done: Called with how its load or unload ends. Writer: the part that begins it.
        reserved: The memory reserved for it; None if there is no limit. Writers:
            LoadAdmission, and the part that moves the version on.
        is_executing: Whether its load or unload counts as in progress. Writer:
            LoadAdmission.
        is_refused: Whether it ended only because others had the memory. Writer:
            LoadAdmission.
        is_ended: Whether its load failed and that was published. Writer: VersionExecutor.
        is_asking: Whether its loader is being asked for an estimate. Writer: Preflight.
        was_asked: Whether its loader was asked, even if it gave no answer. Writer:
            Preflight.
        again_at_s: When a version that has ended, or serves with a fault, is tried again,
            by the clock; None if it is not. Writer: BasicManager.
        fault: What is wrong with it although it serves; None while it is well. Writer of
            this and of what follows: VersionEvents.
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
        "_since_s",
        "again_at_s",
        "done",
        "fault",
        "handle",
        "harness",
        "heir_error",
        "is_asking",
        "is_ended",
        "is_executing",
        "is_over",
        "is_refused",
        "is_replaced",
        "is_started",
        "note",
        "reason",
        "reserved",
        "resident_bytes",
        "was_asked",
    )

    def __init__(self, harness: LoaderHarness, reason: str = "") -> None:
        self.harness = harness
        self.reason = reason
        self.handle: Handle | None = None
        self.done: Done | None = None
        self.reserved: ResourceAllocation | None = None
        self.is_executing = False
        self.is_refused = False
        self.is_ended = False
        self.is_asking = False
        self.was_asked = False
        self.again_at_s: float | None = None
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

    @property
    def is_serving(self) -> bool:
        """Whether requests can reach it."""
        return self.handle is not None and self.handle.live

    def as_decided_on(self) -> HarnessSnapshot:
        """Returns where it stands, for deciding what to do next.

        Until its end has been published it counts as unloading, so that nothing that
        follows from its end is published before it.
        """
        snapshot = self.harness.snapshot()
        if snapshot.state in END_STATES and not self.is_over:
            return replace(snapshot, state=HarnessState.UNLOADING)
        return snapshot

    @property
    def can_be_forgotten(self) -> bool:
        """Whether nothing is loaded or requested, and its end has been published.

        A load is over a moment before its failure is published, on another thread. If
        the version were replaced in between, its successor would be reported to have
        ended.
        """
        harness = self.harness
        return harness.is_dormant and (self.is_over or not harness.is_over)

    @property
    def is_abandoned(self) -> bool:
        """Whether no source wants it and its load or unload takes too long to wait for.

        A version that serves is never abandoned, however long its load took.
        """
        harness = self.harness
        return harness.is_late and not harness.is_aspired and not self.is_serving

    def tell(self, error: ServingError | None) -> None:
        """Calls ``done``, once, with how the load or unload ended."""
        done, self.done = self.done, None
        if done is not None:
            done(error)

    def load_status(self, *, is_deferred: bool) -> LoadStatus:
        """Returns how its load is going, or how it went."""
        harness = self.harness
        retry_at_s = harness.retry_at_s
        return LoadStatus(
            num_failures=harness.num_failures,
            next_attempt_s=self.again_at_s if retry_at_s is None else retry_at_s,
            error=harness.error,
            duration_s=harness.load_s,
            reserved=self.reserved,
            is_deferred=is_deferred,
        )

    def state(self, manager_state: ManagerState, wall_s: float) -> ServableState:
        """Returns what to publish of it when it enters a state now."""
        harness = self.harness
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
            id=self.harness.id,
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
