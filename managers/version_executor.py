"""Carries out loads and unloads on their pools, up to AVAILABLE or END.

Each attempt to load estimates, is admitted, and loads; ``load`` continues a load from
wherever it stands. A load ends once: if it did not become AVAILABLE, the part that finds
this out calls ``end_load``. An unload withdraws a version, waits for its pins, and
destroys the servable on the pool, never on the thread of the request that released the
last pin. Then memory is given back to the system, and only then is the unload over.

Waiting occupies no thread: for memory, a load waits with LoadAdmission; for the end of a
pause, and for pins, versions wait here until ``collect`` moves them on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from managers.freed_memory import MemoryReleaser
from managers.harness_state import HarnessState
from managers.load_admission import LoadAdmission
from managers.loader_harness import Progress
from managers.managed_version import ManagedVersion
from managers.patient_pool import PatientPool
from managers.serving_map import ServingMap, retire
from managers.version_events import VersionEvents
from tfs.core.clock import Clock
from tfs.core.errors import Cancelled, ServingError, serving_error
from tfs.core.executor import Executor
from tfs.core.pacing import yield_to_requests
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState

log = logging.getLogger(__name__)

# If a caller looked up ``release`` before its handle was retired and calls it
# afterwards, nobody is told. So pins are looked at again: soon after retiring, because
# such a call usually follows within two bytecodes, and then ever less often, because a
# caller may keep the bound method.
_FIRST_RECHECK_S: Final = 0.001
_LAST_RECHECK_S: Final = 0.25


class _QuiescingVersion:
    """A retired version that was still pinned when last looked at."""

    __slots__ = ("_recheck_s", "managed", "recheck_at_s")

    def __init__(self, managed: ManagedVersion, now_s: float) -> None:
        self.managed = managed
        self._recheck_s = _FIRST_RECHECK_S
        self.recheck_at_s = now_s + self._recheck_s

    def is_drained(self, now_s: float) -> bool:
        """Returns whether nothing pins it any more; if not, looks again later."""
        handle = self.managed.handle
        if handle is None or not handle.num_pins:
            return True
        if now_s >= self.recheck_at_s:
            self._recheck_s = min(2 * self._recheck_s, _LAST_RECHECK_S)
            self.recheck_at_s = now_s + self._recheck_s
        return False


class VersionExecutor:
    """Loads and unloads versions whose harness was asked to. Thread-safe.

    Does not own its executors.

    Args:
        load_executor: Runs attempts to load.
        unload_executor: Runs the loaders' unloading; may be the same.
        patience_s: How long a load or an unload may take before others stop waiting for
            it.
        clock: For pauses, and when to look at pins again.
        admission: Decides about memory.
        events: Publishes the states of versions.
        serving_map: Where loaded versions appear.
        releaser: Gives memory back after unloads and failed loads; None does not.
        pre_load_hook: Called before each first attempt, on the pool.
        on_change: Called with a servable's name when one of its versions has moved on,
            may no longer be pinned, or when the pool can take another load; on any
            thread, even a request's.

    """

    def __init__(
        self,
        load_executor: Executor,
        unload_executor: Executor,
        patience_s: float,
        clock: Clock,
        *,
        admission: LoadAdmission,
        events: VersionEvents,
        serving_map: ServingMap,
        releaser: MemoryReleaser | None,
        pre_load_hook: Callable[[ServableId], None] | None,
        on_change: Callable[[str], None],
    ) -> None:
        self._load_pool, self._unload_pool = (
            PatientPool(executor, clock, patience_s, self._wait_no_longer)
            for executor in (load_executor, unload_executor)
        )
        self._clock = clock
        self._admission = admission
        self._events = events
        self._serving_map = serving_map
        self._releaser = releaser
        self._pre_load_hook = pre_load_hook
        self._on_change = on_change
        # Guards the fields below, and is_ended of every version; leaf.
        self._lock = threading.Lock()
        self._paused: dict[ManagedVersion, None] = {}
        self._quiescing: list[_QuiescingVersion] = []

    @property
    def num_running(self) -> int:
        """Functions on both pools that have not ended, without those that hang."""
        return self._load_pool.num_running + self._unload_pool.num_running

    @property
    def num_running_loads(self) -> int:
        """Functions on the load pool that have not ended, without those that hang."""
        return self._load_pool.num_running

    def collect(self) -> float | None:
        """Moves versions on that need not wait any more; see ``BasicManager.collect``."""
        now_s = self._clock.now()
        drained = self._take_drained(now_s)
        decided = self._admission.take_decided()
        due = self._take_due(now_s)
        for managed in drained:
            self._destroy(managed)
        for managed in decided:
            if managed.harness.is_over:
                self.end_load(managed)
            else:
                self.load(managed)
        for managed in due:
            self.load(managed)
        # Computed last, because inline executors have moved versions on by then.
        with self._lock:
            waits_s = [each.harness.retry_at_s for each in self._paused]
            waits_s += [each.recheck_at_s for each in self._quiescing]
        times_s = (
            *waits_s,
            self._load_pool.relieve(),
            self._unload_pool.relieve(),
            self._release_memory(now_s),
        )
        return min((t for t in times_s if t is not None), default=None)

    # -- loads -------------------------------------------------------------------------

    def load(self, managed: ManagedVersion) -> None:
        """Continues a load as soon as a thread is free."""

        def give_up() -> None:
            if not managed.harness.cancel():
                managed.harness.fail(Cancelled(f"shutting down: {managed.harness.id}"))
            self.end_load(managed)

        self.submit(managed, lambda: self._attempt(managed), give_up)

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
            self._load_pool.submit(managed, run, note_ran)
        except RuntimeError:
            self._on_change(managed.harness.id.name)
            on_closed()

    def end_load(self, managed: ManagedVersion) -> None:
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

    def _attempt(self, managed: ManagedVersion) -> None:
        """Makes one attempt: estimates, is admitted, and loads."""
        harness = managed.harness
        if harness.state is HarnessState.LOAD_REQUESTED:
            if harness.estimate is None and not self._is_done(
                managed, harness.estimate_once()
            ):
                return
            if not self._admission.admit(managed) or not harness.approve_load():
                if harness.is_over:
                    self.end_load(managed)
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
            self.end_load(managed)
            return False
        return True

    def _is_done(self, managed: ManagedVersion, progress: Progress) -> bool:
        """Whether an attempt is DONE; lets the load pause, or ends it, otherwise."""
        if progress is Progress.FAILED:
            self.end_load(managed)
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
            self.end_load(managed)
            return
        if managed.reserved is not None:
            too_large = self._admission.correct(managed, harness.estimate_again())
            if too_large is not None:
                harness.abandon_load(too_large)
                self.end_load(managed)
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

    # -- unloads -----------------------------------------------------------------------

    def unload(self, managed: ManagedVersion) -> None:
        """Takes a version out of service, and destroys it once nothing pins it."""
        harness, handle = managed.harness, managed.handle
        assert handle is not None
        harness.transition(HarnessState.QUIESCING)
        self._events.publish(managed, ManagerState.UNLOADING)
        name = harness.id.name
        if retire(self._serving_map, handle, lambda: self._on_change(name)):
            self._destroy(managed)
            return
        log.info(
            "event=waiting_for_pins servable=%s num_pins=%d",
            harness.id.slashed,
            handle.num_pins,
        )
        with self._lock:
            self._quiescing.append(_QuiescingVersion(managed, self._clock.now()))
        self._on_change(name)

    def _destroy(self, managed: ManagedVersion) -> None:
        """Destroys a version that nothing pins, as soon as a thread is free."""
        managed.harness.transition(HarnessState.QUIESCED)
        try:
            self._unload_pool.submit(managed, lambda: self._free(managed))
        except RuntimeError:
            self._free(managed)  # the pool is closed, so no other thread will

    def _free(self, managed: ManagedVersion) -> None:
        """Frees a version. On the unload pool."""
        harness = managed.harness
        if managed.handle is not None:
            managed.handle.drop()
        harness.unload()
        if self._releaser is not None:
            self._releaser.note_unload()
        yield_to_requests()
        self._admission.release(managed)
        self._admission.end(managed)
        log.info(
            "event=unloaded servable=%s reason=%r", harness.id.slashed, harness.reason
        )
        self._events.publish(managed, ManagerState.END)
        managed.tell(harness.error)
        self._on_change(harness.id.name)

    # -- what waits --------------------------------------------------------------------

    def _take_due(self, now_s: float) -> list[ManagedVersion]:
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

    def _take_drained(self, now_s: float) -> list[ManagedVersion]:
        """Takes out the versions that are no longer pinned."""
        drained, pinned = list[ManagedVersion](), list[_QuiescingVersion]()
        with self._lock:
            for each in self._quiescing:
                if each.is_drained(now_s):
                    drained.append(each.managed)
                else:
                    pinned.append(each)
            self._quiescing = pinned
        return drained

    def _release_memory(self, now_s: float) -> float | None:
        """Gives back memory that is owed; returns when to call again if it is too early."""
        owed_at_s = None if self._releaser is None else self._releaser.owed_at_s
        if self._releaser is None or owed_at_s is None or owed_at_s > now_s:
            return owed_at_s
        with contextlib.suppress(RuntimeError):  # closing
            self._unload_pool.submit(None, self._releaser.release_owed)
        return None

    def _wait_no_longer(self, managed: ManagedVersion) -> None:
        """Lets others stop waiting for a version that hangs, and publishes that."""
        harness = managed.harness
        log.warning(
            "event=version_late servable=%s state=%s",
            harness.id.slashed,
            harness.state.value,
        )
        self._events.note_late(managed, is_late=True)
        self._events.start_heirs(managed)
        self._on_change(harness.id.name)
