"""Loads and unloads the versions that others decide on.

Each load and each unload has two phases. *Deciding* is quick and happens in order: the
harness is asked to change its state, and memory is reserved (LoadAdmission).
*Executing* blocks for as long as the loader does and happens on a pool (VersionExecutor), so
that a slow load delays no unload. Preflight finds out what can be
known of a version before its load is asked for.

Waiting occupies no thread, whether for the pause before a retry, for memory, or for
pins to be released. ``collect`` moves such versions on when their time has come. The
owner of the manager calls ``collect`` after ``on_change``, and at the time that its
last call returned.

Promises, per version (docs/lifecycle.md):

* START is published when it is first managed, LOADING before its loader runs, AVAILABLE
  as soon as it can be requested and before anything else learns that it is loaded,
  UNLOADING before it stops being requestable, and END once its memory is free, or with
  the error once it has failed;
* its servable is destroyed on the unload pool, never on a request's thread.

While changed files replace what is served, a version has two harnesses, of different
generations. Seen from outside it is still one version, and stays AVAILABLE.

The manager has no lock of its own. Each of its parts guards its own fields, and each
attribute of a version is written by one part only (ManagedVersion says which). Only one
part at a time moves a version on, because the harness refuses a second one.

(TensorFlow Serving: core/basic_manager.h.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from managers.freed_memory import MemoryReleaser
from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import HarnessState
from managers.load_admission import LoadAdmission
from managers.load_status import LoadStatus
from managers.loader_harness import LoaderHarness
from managers.managed_version import Done, ManagedVersion
from managers.preflight import Preflight
from managers.resource_tracker import ResourceTracker
from managers.retry import RetryOptions
from managers.serving_map import Handle, ServingMap
from managers.version_events import VersionEvents
from managers.version_executor import VersionExecutor
from managers.version_table import VersionTable
from tfs.core.clock import Clock, MonotonicClock, steady
from tfs.core.errors import FailedPrecondition, NotFound, ServingError
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor
from tfs.core.loader import Loader
from tfs.core.servable_data import ServableData
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState

log = logging.getLogger(__name__)

LoaderData: TypeAlias = ServableData[Loader[object]]

PATIENCE_S: Final = 60.0
"""Seconds after which others stop waiting for a load. Healthy loads rarely take longer;
one that does goes on."""


@dataclass(frozen=True, slots=True)
class BasicManagerOptions:
    """The options of loads and unloads. Immutable.

    Attributes:
        retry: When failed loads are tried again.
        pre_load_hook: Called before each first attempt, on the load pool.
        patience_s: How long a load or an unload may take before others stop waiting for
            it. It keeps its thread then, and the pool gets another one in its place.

    """

    retry: RetryOptions = field(default_factory=RetryOptions)
    pre_load_hook: Callable[[ServableId], None] | None = None
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        if not self.patience_s > 0:
            raise ValueError(f"patience_s must be positive: {self.patience_s}")


class BasicManager:
    """The managed versions, with their loads and unloads.

    Thread-safe. Does not own its executors.

    Attributes:
        serving_map: Where loaded versions appear; the same object for ever.
        preflight: Finds out what can be known of a version before its load.

    Args:
        options: When loads are retried, and how long others wait for them.
        event_bus: Where states are published; None publishes nothing.
        load_executor: Runs loads.
        unload_executor: Runs unloads; may be the same.
        clock: For retries.
        tracker: What loads reserve from; None lets every load through.
        releaser: Gives memory back after unloads and failed loads; None does not.
        on_change: Called with a servable's name when ``collect`` has something to do
            for it, or when one of its versions has moved on. It must be quick, because
            it is called on any thread, even a request's.

    """

    def __init__(
        self,
        options: BasicManagerOptions | None = None,
        *,
        event_bus: EventBus[ServableState] | None,
        load_executor: Executor,
        unload_executor: Executor,
        clock: Clock | None = None,
        tracker: ResourceTracker | None = None,
        releaser: MemoryReleaser | None = None,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options or BasicManagerOptions()
        self._clock = steady(clock or MonotonicClock())
        self._on_change = on_change or (lambda _name: None)
        self.serving_map = ServingMap()
        self._versions = VersionTable()
        self._admission = LoadAdmission(tracker)
        self._events = VersionEvents(event_bus, self._clock, self._versions.siblings)
        self._executor = VersionExecutor(
            load_executor,
            unload_executor,
            self._options.patience_s,
            self._clock,
            admission=self._admission,
            events=self._events,
            serving_map=self.serving_map,
            releaser=releaser,
            pre_load_hook=self._options.pre_load_hook,
            on_change=self._on_change,
        )
        self.preflight = Preflight(
            self._versions,
            self._admission,
            self._executor,
            self._events,
            self._on_change,
        )

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
        """Starts to manage a version, without loading it; publishes START.

        A version that carries an error is managed as a failed one, and END is published
        too.

        Args:
            data: The version and its loader, or why there is none.
            reason: Why it is wanted, for people.
            is_replacement: Whether there may already be a harness of the same version,
                which this one is to replace.
            is_aspired: Whether a source wants it.
            heir_error: Why other contents of the version failed that were to replace
                it.

        Raises:
            FailedPrecondition: ``This servable is already being managed: ...``;
                nothing changed.

        """
        managed = ManagedVersion(
            LoaderHarness(
                data,
                retry=self._options.retry,
                clock=self._clock,
                generation=self._versions.next_generation(),
                is_aspired=is_aspired,
                reason=reason,
            ),
            reason,
        )
        managed.heir_error = heir_error
        if not self._versions.add(managed, is_replacement=is_replacement):
            raise FailedPrecondition(
                f"This servable is already being managed: {data.id}"
            )
        self._events.start(managed)
        return managed.harness

    def stop_managing(
        self, servable_id: ServableId, generation: int | None = None
    ) -> None:
        """Stops managing a version that is not loaded; the newest of several generations.

        Raises:
            FailedPrecondition: It is not managed, or is neither new nor over; nothing
                changed.

        """
        managed = self._versions.find(servable_id, generation)
        if managed is None:
            raise FailedPrecondition(
                f"This servable is not being managed: {servable_id}"
            )
        harness = managed.harness
        if not self._versions.remove(managed):
            raise FailedPrecondition(
                "This servable is not in a new or end state and we cannot stop "
                f"managing it: {servable_id} {harness.state.value}"
            )
        is_last = all(m.is_abandoned for m in self._versions.siblings(managed))
        if is_last and harness.state is HarnessState.NEW:
            self._events.publish(managed, ManagerState.END)
        self._events.start_heirs(managed)

    def try_later(self, servable_id: ServableId, generation: int, at_s: float) -> None:
        """Ends a load that pauses between attempts; notes when to try it again."""
        self.note_later(servable_id, generation, at_s)
        self.cancel_load(servable_id, generation)

    def note_later(self, servable_id: ServableId, generation: int, at_s: float) -> None:
        """Notes when a version is tried again, for its load status."""
        managed = self._versions.find(servable_id, generation)
        if managed is not None:
            managed.again_at_s = at_s

    def try_again(
        self,
        servable_id: ServableId,
        generation: int,
        why: str,
        *,
        counts_on: bool = False,
    ) -> bool:
        """Manages a failed version anew, with a new loader; publishes START.

        Args:
            servable_id: The version.
            generation: Which of its harnesses failed; that one is forgotten.
            why: The reason, in words for people.
            counts_on: Whether earlier failed attempts still count.

        Returns:
            Whether it did. If it returns False, nothing changed: the version is not
            managed any more, has not failed, or no new loader can be made for it.

        """
        failed = self._versions.find(servable_id, generation)
        if (
            failed is None
            or failed.harness.state is not HarnessState.ERROR
            or not failed.harness.can_be_renewed
        ):
            return False
        reason = "; ".join(filter(None, (failed.reason, why)))
        try:
            harness = failed.harness.renewed(
                self._versions.next_generation(), reason, counts_on=counts_on
            )
        except Exception as error:  # its files may be gone
            log.warning(
                "event=not_tried_again servable=%s error=%s", servable_id.slashed, error
            )
            return False
        if counts_on:
            # Keeps the number of failed attempts.
            harness.estimate = failed.harness.estimate
        managed = ManagedVersion(harness, failed.reason)
        self._versions.remove(failed)
        self._versions.add(managed)
        self._events.start(managed)
        self._on_change(servable_id.name)
        return True

    def want_again(self, harness: LoaderHarness, reason: str) -> None:
        """Notes that a source wants a version again which is still managed."""
        harness.is_aspired = True
        harness.reason = reason
        managed = self._versions.find(harness.id, harness.generation)
        if managed is not None:
            self._events.end_standing_in(managed)

    def want_no_more(self, harness: LoaderHarness, reason: str) -> None:
        """Notes that no source wants a version any more, and gives up its load."""
        harness.is_aspired = False
        harness.reason = reason
        self.cancel_load(harness.id, harness.generation)

    def replace(self, harness: LoaderHarness, data: LoaderData, why: str) -> None:
        """Manages another loader of a version that serves, which is to replace it."""
        self.want_no_more(harness, f"replaced; {why}")
        self.manage(data, reason=why, is_replacement=True)
        self._on_change(harness.id.name)

    def names(self) -> list[str]:
        """Returns the names of all managed servables."""
        return self._versions.names()

    def harnesses(self, name: str) -> list[LoaderHarness]:
        """Returns the harnesses of one servable, in the order they were managed."""
        return [managed.harness for managed in self._versions.stream(name)]

    def harness(self, servable_id: ServableId, generation: int) -> LoaderHarness | None:
        """Returns one generation of a version; None if it is not managed."""
        managed = self._versions.find(servable_id, generation)
        return None if managed is None else managed.harness

    def snapshots(self, name: str) -> list[HarnessSnapshot]:
        """Returns where every version of one servable stands."""
        return [harness.snapshot() for harness in self.harnesses(name)]

    def snapshots_to_decide_on(self, name: str) -> list[HarnessSnapshot]:
        """Returns what policies decide on; see ManagedVersion.as_decided_on."""
        return [managed.as_decided_on() for managed in self._versions.stream(name)]

    def snapshot(self, servable_id: ServableId) -> HarnessSnapshot | None:
        """Returns where a version stands; None if it is not managed."""
        managed = self._versions.find(servable_id)
        return None if managed is None else managed.harness.snapshot()

    def fault_of(self, harness: LoaderHarness) -> ServingError | None:
        """Returns the fault that was reported of a version that serves, if any."""
        managed = self._versions.find(harness.id, harness.generation)
        return None if managed is None else managed.fault

    def is_replaced(self, harness: LoaderHarness) -> bool:
        """Whether newer contents of a version are loaded, though not aspired any more."""
        managed = self._versions.find(harness.id, harness.generation)
        return managed is not None and any(
            other.harness.generation > harness.generation
            and other.harness.state is HarnessState.READY
            and not other.harness.is_aspired
            for other in self._versions.siblings(managed)
        )

    def load_status(self, servable_id: ServableId) -> LoadStatus | None:
        """Returns how a version's load goes or went; None if it is not managed."""
        managed = self._versions.find(servable_id)
        if managed is None:
            return None
        return managed.load_status(is_deferred=self._admission.is_deferred(managed))

    @property
    def num_executing(self) -> int:
        """Loads and unloads that have not ended, including those that pause or wait."""
        return self._admission.num_executing

    @property
    def num_running(self) -> int:
        """Functions on both pools that have not ended, without those that hang.

        They may be more than ``num_executing``, because an unload that is over may
        still have to report that.
        """
        return self._executor.num_running

    @property
    def num_running_loads(self) -> int:
        """Functions on the load pool that have not ended, without those that hang."""
        return self._executor.num_running_loads

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
        is_loading: bool = False,
    ) -> None:
        """Adds what was found out about a version to its state.

        If the version cannot be requested yet, this is published with its next state.

        Args:
            servable_id: The version.
            note: A sentence for people; None leaves the one it has.
            resident_bytes: Memory measured for it; None leaves what is known.
            is_loading: Whether this is about contents that are being loaded, rather
                than about older ones that serve under the same id meanwhile.

        """
        managed = None
        if not is_loading:
            managed = self._versions.find_serving(servable_id)
        if managed is None:
            managed = self._versions.find(servable_id)
        if managed is not None:
            self._events.annotate(managed, note, resident_bytes)

    def report_error(
        self,
        servable_id: ServableId,
        error: ServingError | None,
        *,
        is_loading: bool = False,
    ) -> None:
        """Shows a fault of an available version in its state; None mends it.

        The version stays loaded and aspired and answers for itself; the manager only
        makes the fault known. ``is_loading`` is as of ``annotate``.
        """
        find = self._versions.find if is_loading else self._versions.find_serving
        managed = find(servable_id)
        if managed is not None:
            self._events.report_error(managed, error)
            self._on_change(servable_id.name)

    # -- requests --------------------------------------------------------------------

    def acquire(self, request: ServableRequest) -> Handle:
        """Pins the requested version; see :class:`tfs.core.manager.Manager`."""
        return self.serving_map.acquire_request(request)

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns the versions that can be requested now, in order."""
        return self.serving_map.list_ids()

    # -- loads and unloads -------------------------------------------------------------

    def load(
        self,
        servable_id: ServableId,
        *,
        generation: int | None = None,
        reason: str = "",
        done: Done | None = None,
    ) -> None:
        """Begins to load a managed version; does not block on a thread pool.

        ``done`` is called with the outcome: None once the version can be requested,
        NotFound if it is not managed, FailedPrecondition if a load was requested
        before, or the error that the load ended with.
        """
        managed = self._request(
            LoaderHarness.request_load, servable_id, generation, reason, done
        )
        if managed is not None:
            self._executor.load(managed)

    def cancel_load(
        self, servable_id: ServableId, generation: int | None = None
    ) -> None:
        """Gives a load up; see :meth:`LoaderHarness.cancel`. Never blocks."""
        managed = self._versions.find(servable_id, generation)
        if managed is not None and self._admission.cancel(managed):
            self._executor.end_load(managed)

    def unload(
        self,
        servable_id: ServableId,
        *,
        generation: int | None = None,
        reason: str = "",
        done: Done | None = None,
    ) -> None:
        """Takes a version out of service and begins to unload it; never blocks.

        The version is destroyed on the unload pool once nothing pins it. ``done`` is
        called with the outcome: None once it is gone, NotFound if it is not managed,
        FailedPrecondition if it is not loaded or is being unloaded already, or what its
        loader raised.
        """
        managed = self._request(
            LoaderHarness.request_unload, servable_id, generation, reason, done
        )
        if managed is not None:
            self._admission.begin_unload(managed)
            self._executor.unload(managed)

    def _request(
        self,
        move: Callable[[LoaderHarness], None],
        servable_id: ServableId,
        generation: int | None,
        reason: str,
        done: Done | None,
    ) -> ManagedVersion | None:
        """Applies ``move`` to a version's harness; tells ``done`` if it cannot."""
        managed = self._versions.find(servable_id, generation)
        error: ServingError | None = None
        if managed is None:
            error = NotFound(
                f"This servable is not being managed by the manager: {servable_id}"
            )
        else:
            try:
                move(managed.harness)
            except FailedPrecondition as refusal:
                error = refusal
        if managed is None or error is not None:
            if done is not None:
                done(error)
            return None
        managed.done = done
        if reason:
            managed.harness.reason = reason
        return managed

    # -- what waits --------------------------------------------------------------------

    def collect(self) -> float | None:
        """Moves versions on that need not wait any more; returns when to call it again.

        It begins retries whose pause is over and loads that fit now, ends loads that
        will never fit, destroys versions that nothing pins any more, gives memory back
        to the system, and lets others stop waiting for loads and unloads that hang.
        Does not block if the executors are thread pools.

        Returns:
            The time, by the clock, when there will be something to do; None if only a
            change can bring something.

        """
        return self._executor.collect()
