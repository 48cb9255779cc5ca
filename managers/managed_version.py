"""One version of a manager: its harness, its handle, and how both look from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from managers.load_status import LoadStatus
from managers.loader_harness import END_STATES, LoaderHarness
from managers.serving_map import Handle
from tfs.core.errors import ServingError
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_handle import FIRST_RECHECK_S, LAST_RECHECK_S
from tfs.core.servable_state import ManagerState, ServableState

_MOVING: Final = (ManagerState.START, ManagerState.LOADING, ManagerState.UNLOADING)
_LATE: Final = (
    "it takes very long, and nobody waits for it any more: does its storage answer?"
)

Done: TypeAlias = Callable[[ServingError | None], None]
"""Takes how a load or unload ended; called once, on any thread, under no lock."""


class ManagedVersion:
    """A harness and what the manager keeps beside it; guarded as the manager says.

    Attributes:
        harness: Its loader's life.
        reason: Why it was taken in, for people.
        handle: What requests pin; None until it was loaded.
        done: Who wants to know how its load or unload ends.
        reserved: Its memory; None where there is no limit.
        fault: What an interpreter reported of it; None while it is well.
        heir_error: Why the contents that were to replace it failed, for which it was
            unloaded and came back; None as a rule.
        note: What was found out about it.
        resident_bytes: Memory measured for it.
        since_s: When it first became AVAILABLE, seconds since the epoch.
        entered: The state that was asked for last, and when it was first.
        is_started: Whether its START was published.
        is_executing: Whether it is counted among what executes.
        is_ended: Whether its load failed and that was published.
        is_refused: Whether it ended only because others held the memory.
        is_asking: Whether it is being asked what it takes, ahead of its load.
        was_asked: Whether it was asked; what it said may be nothing.

    """

    __slots__ = (
        "done",
        "entered",
        "fault",
        "handle",
        "harness",
        "heir_error",
        "is_asking",
        "is_ended",
        "is_executing",
        "is_refused",
        "is_started",
        "note",
        "reason",
        "reserved",
        "resident_bytes",
        "since_s",
        "was_asked",
    )

    def __init__(self, harness: LoaderHarness, reason: str = "") -> None:
        self.harness = harness
        self.reason = reason
        self.handle: Handle | None = None
        self.done: Done | None = None
        self.reserved: ResourceAllocation | None = None
        self.fault: ServingError | None = None
        self.heir_error: ServingError | None = None
        self.note = ""
        self.resident_bytes: int | None = None
        self.since_s: float | None = None
        self.entered = (ManagerState.START, 0.0)
        self.is_started = False
        self.is_executing = False
        self.is_ended = False
        self.is_refused = False
        self.is_asking = False
        self.was_asked = False

    @property
    def is_serving(self) -> bool:
        """Whether requests can reach it."""
        return self.handle is not None and self.handle.live

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody wants it, and what it does takes too long to wait for."""
        return self.harness.is_late and not self.harness.is_aspired

    def state(self, manager_state: ManagerState, wall_s: float) -> ServableState:
        """Returns what to publish of it when it enters a state now."""
        harness = self.harness
        is_available = manager_state is ManagerState.AVAILABLE
        if self.entered[0] is not manager_state or not self.entered[1]:
            self.entered = manager_state, wall_s
        since_s = self.entered[1]  # published again when something is noted
        if is_available:
            since_s = self.since_s = self.since_s or wall_s
        is_late = harness.is_late and manager_state in _MOVING
        error = harness.snapshot().error
        if is_available:
            error = self.fault or self.heir_error
        return ServableState(
            id=harness.id,
            manager_state=manager_state,
            error=error,
            reason=harness.reason,
            since_s=since_s,
            resident_bytes=self.resident_bytes,
            note=_LATE if is_late else self.note,
            is_late=is_late,
        )

    def state_beside(self, heir: ManagedVersion, wall_s: float) -> ServableState:
        """Returns what to publish while it serves and ``heir`` is to replace it."""
        now = heir.harness.snapshot()
        note = f"changed; {now.state.value}; what was loaded before serves"
        return ServableState(
            id=self.harness.id,
            manager_state=ManagerState.AVAILABLE,
            error=now.error or self.fault,
            reason=heir.harness.reason,
            since_s=self.since_s or wall_s,
            resident_bytes=self.resident_bytes,
            note=note,
            is_late=heir.harness.is_late,
            is_changing=now.state not in END_STATES,
        )

    def load_status(self, *, is_deferred: bool) -> LoadStatus:
        """Returns how its load goes or went."""
        harness = self.harness
        return LoadStatus(
            num_failures=harness.num_failures,
            next_attempt_s=harness.retry_at_s,
            error=harness.snapshot().error,
            duration_s=harness.load_s,
            reserved=self.reserved,
            is_deferred=is_deferred,
        )


class QuiescingVersion:
    """A retired version that was still pinned when last looked at.

    Attributes:
        managed: Which.
        recheck_at_s: When to look again, by the manager's clock.

    """

    __slots__ = ("_recheck_s", "managed", "recheck_at_s")

    def __init__(self, managed: ManagedVersion, now_s: float) -> None:
        self.managed = managed
        self._recheck_s = FIRST_RECHECK_S
        self.recheck_at_s = now_s + self._recheck_s

    def is_drained(self, now_s: float) -> bool:
        """Tells whether nothing pins it any more; if something does, looks later."""
        handle = self.managed.handle
        if handle is None or not handle.num_pins:
            return True
        if now_s >= self.recheck_at_s:
            self._recheck_s = min(2 * self._recheck_s, LAST_RECHECK_S)
            self.recheck_at_s = now_s + self._recheck_s
        return False
