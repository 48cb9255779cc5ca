"""Loads and unloads versions when told to; decides nothing about which.

Each load and each unload has two phases. *Deciding* is quick and happens in order:
the harness moves to LOAD_REQUESTED, memory is reserved, the handle is retired.
*Executing* blocks as long as the loader does and happens on the load or the unload
pool, so that a slow load delays no unload.

What takes time without doing anything keeps no thread: a pause before a retry, a
load that waits for memory, a version that is still pinned. ``collect`` moves such
versions on when their time has come; whoever drives the manager calls it when
``on_change`` was called and at the time it asked for.

Promises, per version (docs/lifecycle.md):

* START is published when it is first managed, LOADING before its loader runs,
  AVAILABLE after it can be requested and before anything else learns that it is
  loaded, UNLOADING before it stops being requestable, END after its memory is free
  or it failed, with the error;
* its servable is destroyed on the unload pool, never on a request's thread.

A version may have two harnesses, of different generations, while changed files
replace what is served. To the outside it is then one version that stays AVAILABLE.

(TensorFlow Serving: core/basic_manager.h.)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from managers.load_admission import LoadAdmission
from managers.load_status import LoadStatus
from managers.loader_harness import (
    HarnessSnapshot,
    HarnessState,
    LoaderHarness,
    Progress,
)
from managers.managed_version import Done, ManagedVersion, QuiescingVersion
from managers.managed_versions import ManagedVersions
from managers.memory import MemoryReleaser
from managers.patient_pool import PatientPool
from managers.resource_tracker import ResourceTracker
from managers.retry import RetryOptions
from managers.serving_map import Handle, ServingMap, retire
from managers.version_events import VersionEvents
from tfs.core.clock import Clock, MonotonicClock, steady
from tfs.core.errors import (
    Cancelled,
    FailedPrecondition,
    NotFound,
    ServingError,
    serving_error,
)
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor
from tfs.core.loader import Loader
from tfs.core.right_of_way import make_way
from tfs.core.servable_data import ServableData
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState

log = logging.getLogger(__name__)

LoaderData: TypeAlias = ServableData[Loader[object]]

PATIENCE_S: Final = 60.0
"""Longer than loads take that nothing is wrong with, as a rule; they may all the same."""


class BasicManager:
    """Managed versions, their loads and unloads, and who can request them.

    Thread-safe. Does not own its executors.

    Args:
        event_bus: Where states are published; None publishes nothing.
        load_executor: Runs loads.
        unload_executor: Runs unloads; may be the same.
        clock: For retries.
        tracker: What loads reserve from; None lets every load through.
        retry: When failed loads are tried again.
        serving_map: Where loaded versions appear; one is made if it is None.
        releaser: Gives memory back after unloads and failed loads; None does not.
        pre_load_hook: Called before each first attempt, on the load pool.
        on_change: Called with a name when ``collect`` has something to do for it, or
            one of its versions moved on. Quick; on any thread, also a request's.
        patience_s: How long a load or an unload may take before others go on without
            it: it keeps its thread, and another takes its place.

    """

    def __init__(
        self,
        *,
        event_bus: EventBus[ServableState] | None,
        load_executor: Executor,
        unload_executor: Executor,
        clock: Clock | None = None,
        tracker: ResourceTracker | None = None,
        retry: RetryOptions | None = None,
        serving_map: ServingMap | None = None,
        releaser: MemoryReleaser | None = None,
        pre_load_hook: Callable[[ServableId], None] | None = None,
        on_change: Callable[[str], None] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.serving_map = serving_map or ServingMap()
        self._clock = steady(clock or MonotonicClock())
        self._loads = PatientPool(load_executor, self._clock, patience_s)
        self._unloads = PatientPool(unload_executor, self._clock, patience_s)
        self._retry = retry or RetryOptions()
        self._releaser = releaser
        self._pre_load_hook = pre_load_hook
        self._on_change = on_change or (lambda _name: None)
        # Guards the fields below. Ranks after the aspired-versions manager's locks
        # and before a harness's and the tracker's. No loader, event, callback,
        # executor or handle is called under it.
        self._lock = threading.Lock()
        self._events = VersionEvents(event_bus, self._clock, self._siblings)
        self._versions = ManagedVersions()
        self._admission = LoadAdmission(tracker)
        self._num_generations = 0
        self._retrying: list[ManagedVersion] = []
        self._quiescing: list[QuiescingVersion] = []

    # -- what is managed -----------------------------------------------------------

    def manage(
        self,
        data: LoaderData,
        *,
        reason: str = "",
        is_replacement: bool = False,
        is_aspired: bool = True,
        heir_error: ServingError | None = None,
    ) -> LoaderHarness:
        """Takes a version in, without loading it; publishes START.

        A version that carries an error is taken in as failed, and END is published.

        Args:
            data: The version and its loader, or why there is none.
            reason: Why it is wanted, for people.
            is_replacement: Whether it may stand beside a harness of the same version,
                which it is to replace.
            is_aspired: Whether a source wants it.
            heir_error: Why other contents of the version failed, which were to be in
                its place.

        Raises:
            FailedPrecondition: ``This servable is already being managed: ...``;
                nothing changed.

        """
        with self._lock:
            if not is_replacement and self._versions.find(data.id) is not None:
                raise FailedPrecondition(
                    f"This servable is already being managed: {data.id}"
                )
            self._num_generations += 1
            managed = ManagedVersion(
                LoaderHarness(
                    data,
                    retry=self._retry,
                    clock=self._clock,
                    generation=self._num_generations,
                    is_aspired=is_aspired,
                    reason=reason,
                ),
                reason,
            )
            managed.heir_error = heir_error
            self._versions.add(managed)
        self._events.start(managed)
        return managed.harness

    def stop_managing(
        self, servable_id: ServableId, generation: int | None = None
    ) -> None:
        """Forgets a version that is not loaded; of several generations the newest.

        Raises:
            FailedPrecondition: It is not managed, or is neither new nor over; nothing
                changed.

        """
        with self._lock:
            managed = self._versions.find(servable_id, generation)
            if managed is None:
                raise FailedPrecondition(
                    f"This servable is not being managed: {servable_id}"
                )
            harness = managed.harness
            if not harness.is_dormant:
                raise FailedPrecondition(
                    "This servable is not in a new or end state and we cannot stop "
                    f"managing it: {servable_id} {harness.state.value}"
                )
            self._versions.remove(managed)
            others = self._versions.of_id(servable_id)
        is_last = all(other.is_abandoned for other in others)
        if is_last and harness.state is HarnessState.NEW:
            self._events.publish(managed, ManagerState.END)
        for other in others:
            self._events.start(other)

    def want_again(self, harness: LoaderHarness, reason: str) -> None:
        """Notes that a source wants a version again that is still there."""
        harness.is_aspired = True
        harness.reason = reason
        with self._lock:
            managed = self._versions.find(harness.id, harness.generation)
        if managed is not None:
            self._events.end_standing_in(managed)

    def names(self) -> list[str]:
        """Returns the names of all managed servables."""
        with self._lock:
            return self._versions.names()

    def harnesses(self, name: str) -> list[LoaderHarness]:
        """Returns the harnesses of one servable, in the order they were managed."""
        with self._lock:
            return [managed.harness for managed in self._versions.stream(name)]

    def harness(self, servable_id: ServableId, generation: int) -> LoaderHarness | None:
        """Returns one generation of a version; None if it is not managed."""
        with self._lock:
            managed = self._versions.find(servable_id, generation)
        return None if managed is None else managed.harness

    def snapshots(self, name: str) -> list[HarnessSnapshot]:
        """Returns where every version of one servable stands."""
        return [harness.snapshot() for harness in self.harnesses(name)]

    def snapshot(self, servable_id: ServableId) -> HarnessSnapshot | None:
        """Returns where a version stands; None if it is not managed."""
        with self._lock:
            managed = self._versions.find(servable_id)
        return None if managed is None else managed.harness.snapshot()

    def load_status(self, servable_id: ServableId) -> LoadStatus | None:
        """Returns how a version's load goes or went; None if it is not managed."""
        with self._lock:
            managed = self._versions.find(servable_id)
            if managed is None:
                return None
            is_deferred = self._admission.is_deferred(managed)
        return managed.load_status(is_deferred=is_deferred)

    @property
    def num_executing(self) -> int:
        """Loads and unloads begun and not ended, pauses and pins included."""
        return self._admission.num_executing

    @property
    def num_running_loads(self) -> int:
        """Functions that the load pool was given, has not ended and waits for."""
        return self._loads.num_running

    @property
    def num_deferred(self) -> int:
        """Loads that wait for memory."""
        return self._admission.num_deferred

    def annotate(
        self,
        servable_id: ServableId,
        *,
        note: str | None = None,
        resident_bytes: int | None = None,
    ) -> None:
        """Adds what was found out about an available version to its state."""
        with self._lock:
            managed = self._versions.find_serving(servable_id)
        if managed is not None:
            self._events.annotate(managed, note, resident_bytes)

    def report_error(self, servable_id: ServableId, error: ServingError | None) -> None:
        """Shows a fault of an available version in its state; None mends it.

        For a version that its interpreter quarantined. It stays loaded and aspired
        and answers for itself; the manager only makes the fault known.
        """
        with self._lock:
            managed = self._versions.find_serving(servable_id)
        if managed is not None:
            self._events.report_error(managed, error)

    # -- memory ----------------------------------------------------------------------

    @property
    def has_memory_limit(self) -> bool:
        """Whether loads reserve memory."""
        return self._admission.has_limit

    def take_room_made(self) -> bool:
        """Returns whether a load or an unload ended since this was last called."""
        if not self._admission.may_have_made_room:
            return False
        # Before anybody looks: what ends from here on says so again.
        self._admission.may_have_made_room = False
        return True

    def is_refused(self, version: HarnessSnapshot) -> bool:
        """Whether a version ended only because others held the memory."""
        managed = self._find(version)
        return managed is not None and managed.is_refused

    def estimate_ahead(self, version: HarnessSnapshot) -> bool:
        """Has a NEW version say what it takes; returns whether it has.

        Asks on the load pool, once; ``on_change`` follows. What goes wrong is left for
        its load to tell.
        """
        with self._lock:
            managed = self._versions.find(version.id, version.generation)
            if managed is None or managed.was_asked:
                return True
            if managed.is_asking:
                return False
            managed.is_asking = True

        def ask() -> None:
            managed.harness.estimate_ahead()
            with self._lock:
                managed.is_asking, managed.was_asked = False, True

        self._submit_counted(managed, ask, on_closed=lambda: None)
        return managed.was_asked

    def end_if_flawed(self, version: HarnessSnapshot) -> bool:
        """Ends a NEW version that was found not to load, before its load was begun.

        Returns whether.
        """
        with self._lock:
            managed = self._versions.find(version.id, version.generation)
            if managed is None or managed.harness.state is not HarnessState.NEW:
                return False
            flaw = managed.harness.flaw
            if flaw is None:
                return False
            managed.harness.fail(flaw)
        self._end_load(managed)
        return True

    def is_asking(self, version: HarnessSnapshot) -> bool:
        """Whether a version is being asked what it takes: it cannot be loaded yet."""
        managed = self._find(version)
        return managed is not None and managed.is_asking

    def refuse(
        self, version: HarnessSnapshot, going: Sequence[HarnessSnapshot]
    ) -> None:
        """Ends a NEW version that would not fit even if ``going`` were unloaded."""
        with self._lock:
            managed = self._versions.find(version.id, version.generation)
            if managed is None or managed.harness.state is not HarnessState.NEW:
                return
            self._admission.refuse(managed, self._find_all_locked(going))
        self._end_load(managed)

    def promise_room(
        self, version: HarnessSnapshot, going: Sequence[HarnessSnapshot]
    ) -> bool:
        """Keeps memory for a NEW version, if it fits once ``going`` are unloaded.

        By what it said last; of one that has said nothing, it does. Until its load was
        decided on or it is not aspired any more, other loads wait. Returns whether.
        """
        with self._lock:
            managed = self._versions.find(version.id, version.generation)
            return managed is not None and self._admission.promise(
                managed, self._find_all_locked(going)
            )

    def manage_again(
        self, version: HarnessSnapshot, going: Sequence[HarnessSnapshot], reason: str
    ) -> bool:
        """Begins the life of a refused version anew, if it fits without ``going``.

        Publishes START, and keeps the room for it as ``promise_room`` does. Returns
        whether; else nothing changed.
        """
        with self._lock:
            refused = self._versions.find(version.id, version.generation)
            if refused is None or not refused.is_refused:
                return False
            wanted = refused.reason
            reason = "; ".join(filter(None, (wanted, reason)))
            harness = refused.harness.renewed(self._num_generations + 1, reason)
            harness.estimate = refused.harness.estimate
            managed = ManagedVersion(harness, wanted)
            if not self._admission.promise(managed, self._find_all_locked(going)):
                return False
            self._num_generations += 1
            self._versions.remove(refused)
            self._versions.add(managed)
        self._events.start(managed)
        self._on_change(version.id.name)
        return True

    def _find_all_locked(
        self, versions: Sequence[HarnessSnapshot]
    ) -> list[ManagedVersion]:
        found = (self._versions.find(v.id, v.generation) for v in versions)
        return [each for each in found if each is not None]

    def _find(self, version: HarnessSnapshot) -> ManagedVersion | None:
        with self._lock:
            return self._versions.find(version.id, version.generation)

    # -- requests --------------------------------------------------------------------

    def acquire(self, request: ServableRequest) -> Handle:
        """Pins the requested version; see :class:`tfs.core.manager.Manager`."""
        return self.serving_map.acquire_request(request)

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns the versions that can be requested now, in order."""
        return self.serving_map.list_ids()

    # -- loading ---------------------------------------------------------------------

    def load(
        self,
        servable_id: ServableId,
        *,
        generation: int | None = None,
        reason: str = "",
        done: Done | None = None,
    ) -> None:
        """Begins to load a managed version; does not block on a thread pool.

        ``done`` takes the outcome: None once it can be requested, NotFound where it
        is not managed, FailedPrecondition where a load was asked for before, or the
        error it ended with.
        """
        with self._lock:
            managed = self._versions.find(servable_id, generation)
        if managed is None:
            _finish(done, _not_managed(servable_id))
            return
        try:
            managed.harness.request_load()
        except FailedPrecondition as error:
            _finish(done, error)
            return
        managed.done = done
        if reason:
            managed.harness.reason = reason
        self._submit_load(managed)

    def cancel_load(
        self, servable_id: ServableId, generation: int | None = None
    ) -> None:
        """Gives a load up; see :meth:`LoaderHarness.cancel`. Never blocks."""
        with self._lock:
            managed = self._versions.find(servable_id, generation)
            if managed is None or not managed.harness.cancel():
                return
            self._admission.give_up(managed)
            if managed in self._retrying:
                self._retrying.remove(managed)
        self._end_load(managed)

    def _submit_load(self, managed: ManagedVersion) -> None:
        def give_up() -> None:
            if not managed.harness.cancel():
                managed.harness.fail(Cancelled(f"shutting down: {managed.harness.id}"))
            self._end_load(managed)

        self._submit_counted(managed, lambda: self._run_load(managed), give_up)

    def _submit_counted(
        self,
        managed: ManagedVersion,
        run: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        """Gives the load pool something to do for a version."""

        def note_ran(was_late: bool) -> None:
            if was_late:
                self._events.note_late(managed, is_late=False)
            self._on_change(managed.harness.id.name)  # the pool can take another

        try:
            self._loads.submit(managed, run, note_ran)
        except RuntimeError:
            self._on_change(managed.harness.id.name)
            on_closed()

    def _run_load(self, managed: ManagedVersion) -> None:
        """Runs on the load pool: estimates, reserves, loads; one attempt of each."""
        harness = managed.harness
        if harness.state is HarnessState.LOAD_REQUESTED:
            if harness.estimate is None and not self._is_done(
                managed, harness.estimate_once()
            ):
                return
            if not self._is_admitted(managed) or not harness.approve_load():
                if harness.is_over:
                    self._end_load(managed)
                return
            harness.transition(HarnessState.LOADING)
            make_way()
            self._events.publish(managed, ManagerState.LOADING)
            if not self._ran_hook(managed):
                return
        if harness.state is HarnessState.LOADING and self._is_done(
            managed, harness.load_once()
        ):
            make_way()
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
            self._end_load(managed)
            return False
        return True

    def _is_done(self, managed: ManagedVersion, progress: Progress) -> bool:
        """Whether an attempt is DONE; parks or ends the load otherwise."""
        if progress is Progress.FAILED:
            self._end_load(managed)
        elif progress is Progress.AGAIN:
            with self._lock:
                if managed.harness.retry_at_s is not None:  # not cancelled since
                    self._retrying.append(managed)
            self._on_change(managed.harness.id.name)
        return progress is Progress.DONE

    def _is_admitted(self, managed: ManagedVersion) -> bool:
        with self._lock:
            return self._admission.admit(managed)

    def _make_available(self, managed: ManagedVersion) -> None:
        harness = managed.harness
        try:
            servable = harness.servable
        except Exception as error:
            harness.abandon_load(
                serving_error(error, f"{harness.id.slashed} has no servable")
            )
            self._end_load(managed)
            return
        if managed.reserved is not None:
            self._admission.correct(managed, harness.estimate_again())
        make_way()
        handle = ServableHandle(harness.id, servable)
        self._events.make_available(managed, handle, self.serving_map)
        # Only now: whoever decides must not unload another version on the strength
        # of one that cannot be requested yet.
        harness.transition(HarnessState.READY)
        self._note_over(managed)
        make_way()
        log.info(
            "event=loaded servable=%s reason=%r", harness.id.slashed, harness.reason
        )
        self._tell(managed, None)

    def _end_load(self, managed: ManagedVersion) -> None:
        """Publishes that a load failed; the harness is in ERROR. Idempotent."""
        with self._lock:
            if managed.is_ended:
                return
            managed.is_ended = True
        self._admission.release(managed)
        self._note_over(managed)  # only now: it says that there may be room
        if self._releaser is not None:
            self._releaser.owe()  # of what the attempt had made
        harness = managed.harness
        log.warning(
            "event=load_failed servable=%s error=%s", harness.id.slashed, harness.error
        )
        self._events.publish(managed, ManagerState.END)
        self._tell(managed, harness.error)

    # -- unloading -------------------------------------------------------------------

    def unload(
        self,
        servable_id: ServableId,
        *,
        generation: int | None = None,
        reason: str = "",
        done: Done | None = None,
    ) -> None:
        """Takes a version out of service and begins to unload it; never blocks.

        It is destroyed on the unload pool once nothing pins it. ``done`` takes the
        outcome: None once it is gone, NotFound where it is not managed,
        FailedPrecondition where it is not loaded or unloads already, or what its
        loader raised.
        """
        with self._lock:
            managed = self._versions.find(servable_id, generation)
        if managed is None:
            _finish(done, _not_managed(servable_id))
            return
        harness = managed.harness
        try:
            harness.request_unload()
        except FailedPrecondition as error:
            _finish(done, error)
            return
        managed.done = done
        if reason:
            harness.reason = reason
        with self._lock:
            self._admission.begin(managed)
        harness.transition(HarnessState.QUIESCING)
        self._events.publish(managed, ManagerState.UNLOADING)
        name = servable_id.name
        handle = managed.handle
        assert handle is not None
        if retire(self.serving_map, handle, lambda: self._on_change(name)):
            self._submit_unload(managed)
            return
        log.info(
            "event=waiting_for_pins servable=%s num_pins=%d",
            servable_id.slashed,
            handle.num_pins,
        )
        with self._lock:
            self._quiescing.append(QuiescingVersion(managed, self._clock.now()))
        self._on_change(name)

    def _submit_unload(self, managed: ManagedVersion) -> None:
        managed.harness.transition(HarnessState.QUIESCED)
        try:
            self._unloads.submit(managed, lambda: self._run_unload(managed))
        except RuntimeError:
            self._run_unload(managed)  # closing: nobody else will

    def _run_unload(self, managed: ManagedVersion) -> None:
        """Runs on the unload pool: destroys the servable."""
        make_way()
        harness = managed.harness
        if managed.handle is not None:
            managed.handle.drop()
        harness.unload()
        if self._releaser is not None:
            make_way()
            self._releaser.note_unload()
        make_way()
        self._admission.release(managed)
        self._note_over(managed)
        log.info(
            "event=unloaded servable=%s reason=%r", harness.id.slashed, harness.reason
        )
        self._events.publish(managed, ManagerState.END)
        self._tell(managed, harness.error)

    # -- what waits --------------------------------------------------------------------

    def collect(self) -> float | None:
        """Moves on what waited and need not any more; returns when to look again.

        That is: retries whose pause is over, versions that nothing pins any more,
        loads that now fit or never will, memory owed to the system, and what hangs, for
        which others wait no longer. Does not block on a thread pool.

        Returns:
            The time, by the clock, when there will be something to do; None while
            only a change can bring something.

        """
        with self._lock:
            now_s = self._clock.now()
            due = [m for m in self._retrying if _is_due(m.harness, now_s)]
            for managed in due:
                self._retrying.remove(managed)
            drained = self._take_drained_locked(now_s)
            decided = self._admission.take_decided()
        for managed in drained:
            self._submit_unload(managed)
        for managed in decided:
            if managed.harness.is_over:
                self._end_load(managed)
            else:
                self._submit_load(managed)
        for managed in due:
            self._submit_load(managed)
        with self._lock:  # after the above: inline executors have moved on
            times_s = [self._next_s_locked()]
        times_s += [self._relieve(self._loads), self._relieve(self._unloads)]
        next_s = min((t for t in times_s if t is not None), default=None)
        return self._release_memory(now_s, next_s)

    def _relieve(self, pool: PatientPool) -> float | None:
        """Lets others go on without what takes too long, and says so."""
        late, next_s = pool.relieve()
        for managed in late:
            log.warning(
                "event=version_late servable=%s state=%s",
                managed.harness.id.slashed,
                managed.harness.state.value,
            )
            self._events.note_late(managed, is_late=True)
            for heir in self._siblings(managed):
                self._events.start(heir)  # it need not wait any more
            self._on_change(managed.harness.id.name)
        return next_s

    def _take_drained_locked(self, now_s: float) -> list[ManagedVersion]:
        drained, pinned = list[ManagedVersion](), list[QuiescingVersion]()
        for each in self._quiescing:
            if each.is_drained(now_s):
                drained.append(each.managed)
            else:
                pinned.append(each)
        self._quiescing = pinned
        return drained

    def _next_s_locked(self) -> float | None:
        times_s = [each.recheck_at_s for each in self._quiescing]
        times_s += [
            managed.harness.retry_at_s
            for managed in self._retrying
            if managed.harness.retry_at_s is not None
        ]
        return min(times_s, default=None)

    def _release_memory(self, now_s: float, next_s: float | None) -> float | None:
        owed_at_s = None if self._releaser is None else self._releaser.owed_at_s
        if self._releaser is None or owed_at_s is None:
            return next_s
        if now_s >= owed_at_s:
            with contextlib.suppress(RuntimeError):  # closing
                self._unloads.submit(None, self._releaser.release_owed)
            return next_s
        return owed_at_s if next_s is None else min(next_s, owed_at_s)

    # -- pieces ------------------------------------------------------------------------

    def _note_over(self, managed: ManagedVersion) -> None:
        with self._lock:
            self._admission.end(managed)

    def _tell(self, managed: ManagedVersion, error: ServingError | None) -> None:
        done, managed.done = managed.done, None
        _finish(done, error)
        self._on_change(managed.harness.id.name)

    def _siblings(self, managed: ManagedVersion) -> list[ManagedVersion]:
        """Returns the other harnesses of the same version."""
        with self._lock:
            same = self._versions.of_id(managed.harness.id)
        return [each for each in same if each is not managed]


def _is_due(harness: LoaderHarness, now_s: float) -> bool:
    return harness.retry_at_s is not None and harness.retry_at_s <= now_s


def _not_managed(servable_id: ServableId) -> ServingError:
    return NotFound(f"This servable is not being managed by the manager: {servable_id}")


def _finish(done: Done | None, error: ServingError | None) -> None:
    if done is not None:
        done(error)
