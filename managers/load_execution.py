"""Carries out loads on a pool: attempt after attempt, up to AVAILABLE or END.

Each attempt estimates, is admitted, and loads. Waiting occupies no thread: for memory,
a load waits with LoadAdmission; for the end of a pause between attempts, it waits here.
``begin`` continues a load from wherever it stands.

A load ends once. If it did not become AVAILABLE, the part that finds this out calls
``end``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from managers.freed_memory import MemoryReleaser
from managers.harness_state import HarnessState
from managers.load_admission import LoadAdmission
from managers.loader_harness import Progress
from managers.managed_version import ManagedVersion
from managers.patient_pool import PatientPool
from managers.serving_map import ServingMap
from managers.version_events import VersionEvents
from tfs.core.errors import Cancelled, ServingError, serving_error
from tfs.core.pacing import yield_to_requests
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState

log = logging.getLogger(__name__)


class LoadExecution:
    """Loads versions whose harness has a load requested. Thread-safe.

    Args:
        pool: Runs the attempts.
        admission: Decides about memory.
        events: Publishes the states of versions.
        serving_map: Where loaded versions appear.
        releaser: Gives memory back after failed loads; None gives none back.
        pre_load_hook: Called before each first attempt, on the pool.
        on_change: Called with a servable's name when one of its versions has moved on,
            or when the pool can take another load.

    """

    def __init__(
        self,
        pool: PatientPool,
        *,
        admission: LoadAdmission,
        events: VersionEvents,
        serving_map: ServingMap,
        releaser: MemoryReleaser | None,
        pre_load_hook: Callable[[ServableId], None] | None,
        on_change: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._admission = admission
        self._events = events
        self._serving_map = serving_map
        self._releaser = releaser
        self._pre_load_hook = pre_load_hook
        self._on_change = on_change
        # Guards the loads that pause, and is_ended of every version; leaf.
        self._lock = threading.Lock()
        self._paused: dict[ManagedVersion, None] = {}

    @property
    def num_running(self) -> int:
        """Functions on the pool that have not ended, without those that hang."""
        return self._pool.num_running

    def begin(self, managed: ManagedVersion) -> None:
        """Continues a load as soon as a thread is free."""

        def give_up() -> None:
            if not managed.harness.cancel():
                managed.harness.fail(Cancelled(f"shutting down: {managed.harness.id}"))
            self.end(managed)

        self.submit(managed, lambda: self._run(managed), give_up)

    def submit(
        self,
        managed: ManagedVersion,
        run: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        """Has ``run`` called for a version on the pool; ``on_closed`` if that is closed."""

        def note_ran(was_late: bool) -> None:
            if was_late:
                self._events.note_late(managed, is_late=False)
            self._on_change(managed.harness.id.name)  # the pool has room again

        try:
            self._pool.submit(managed, run, note_ran)
        except RuntimeError:
            self._on_change(managed.harness.id.name)
            on_closed()

    def take_due(self, now_s: float) -> list[ManagedVersion]:
        """Takes out the loads whose pause is over."""
        with self._lock:
            due = [
                managed
                for managed in self._paused
                if (retry_at_s := managed.harness.retry_at_s) is not None
                and retry_at_s <= now_s
            ]
            for managed in due:
                del self._paused[managed]
        return due

    def next_s(self) -> float | None:
        """Returns when, by the clock, the next pause is over; None if no load pauses."""
        with self._lock:
            times_s = [managed.harness.retry_at_s for managed in self._paused]
        return min((t for t in times_s if t is not None), default=None)

    def end(self, managed: ManagedVersion) -> None:
        """Publishes that a load failed; the harness is in ERROR. Idempotent."""
        with self._lock:
            if managed.is_ended:
                return
            managed.is_ended = True
            self._paused.pop(managed, None)
        self._admission.release(managed)
        self._admission.end(managed)
        if self._releaser is not None:
            self._releaser.owe()  # frees the memory that the attempt had allocated
        harness = managed.harness
        if isinstance(harness.error, Cancelled):  # nobody wants it; nothing is wrong
            log.info("event=load_cancelled servable=%s", harness.id.slashed)
        else:
            log.warning(
                "event=load_failed servable=%s error=%s",
                harness.id.slashed,
                harness.error,
            )
        self._events.publish(managed, ManagerState.END)
        self._tell(managed, harness.error)

    # -- on the pool -----------------------------------------------------------------------

    def _run(self, managed: ManagedVersion) -> None:
        """Makes one attempt: estimates, is admitted, and loads."""
        harness = managed.harness
        if harness.state is HarnessState.LOAD_REQUESTED:
            if harness.estimate is None and not self._is_done(
                managed, harness.estimate_once()
            ):
                return
            if not self._admission.admit(managed) or not harness.approve_load():
                if harness.is_over:
                    self.end(managed)
                return
            harness.transition(HarnessState.LOADING)
            self._events.publish(managed, ManagerState.LOADING)
            if not self._ran_hook(managed):
                return
        if harness.state is HarnessState.LOADING and self._is_done(
            managed, harness.load_once()
        ):
            self._make_available(managed)

    def _ran_hook(self, managed: ManagedVersion) -> bool:
        if self._pre_load_hook is None:
            return True
        harness = managed.harness
        try:
            self._pre_load_hook(harness.id)
        except Exception as error:
            harness.fail(
                serving_error(error, f"cannot prepare to load {harness.id.slashed}")
            )
            self.end(managed)
            return False
        return True

    def _is_done(self, managed: ManagedVersion, progress: Progress) -> bool:
        """Whether an attempt is DONE; lets the load pause, or ends it, otherwise."""
        if progress is Progress.FAILED:
            self.end(managed)
        elif progress is Progress.AGAIN:
            with self._lock:
                # It was not cancelled meanwhile.
                if managed.harness.retry_at_s is not None:
                    self._paused[managed] = None
            self._on_change(managed.harness.id.name)
        return progress is Progress.DONE

    def _make_available(self, managed: ManagedVersion) -> None:
        harness = managed.harness
        try:
            servable = harness.servable
        except Exception as error:
            harness.abandon_load(
                serving_error(error, f"{harness.id.slashed} has no servable")
            )
            self.end(managed)
            return
        if managed.reserved is not None:
            too_large = self._admission.correct(managed, harness.estimate_again())
            if too_large is not None:
                harness.abandon_load(too_large)
                self.end(managed)
                return
        yield_to_requests()
        handle = ServableHandle(harness.id, servable)
        self._events.make_available(managed, handle, self._serving_map)
        # This comes only now, because the manager must not unload another version for
        # one that cannot be requested yet.
        harness.transition(HarnessState.READY)
        self._admission.end(managed)
        log.info(
            "event=loaded servable=%s reason=%r", harness.id.slashed, harness.reason
        )
        self._tell(managed, None)

    def _tell(self, managed: ManagedVersion, error: ServingError | None) -> None:
        managed.tell(error)
        self._on_change(managed.harness.id.name)
