"""Keeps what is loaded in line with what sources aspire.

All decisions are made in ``step``. It takes in what sources aspire (Inbox, reconcile),
forgets versions that are over, plans the next actions of each servable that changed
(Planner), and begins as many of them as the pools can take (ActionQueue). Failed
versions are tried again by the Retrier. Tests call ``step`` themselves; a server starts
the driver, which calls it when something has changed. Nothing is polled. (TensorFlow
Serving polls, and takes one action in the whole server every 100 ms.)

A step looks only at servables to which something has happened. So its cost grows with
the number of changes and not with the number of managed versions.

(TensorFlow Serving: core/aspired_versions_manager.h.)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from managers.loading.load_admission import ResourceTracker
from managers.loading.version_executor import PATIENCE_S, VersionExecutor
from managers.serving_map import Handle, ServingMap
from managers.steps.driver import Driver
from managers.steps.inbox import Aspired, Inbox, reconcile
from managers.steps.planner import Planner, unload_everything
from managers.steps.retrier import Retrier
from managers.transition_policy import (
    Action,
    ActionKind,
    ActionOrder,
    ActionQueue,
    TransitionPolicy,
    availability_preserving,
)
from managers.versions.harness_state import COMING_STATES, HarnessSnapshot, HarnessState
from managers.versions.version import LoadStatus, RetryOptions, Version
from managers.versions.version_table import VersionTable
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor, InlineExecutor, ThreadExecutor
from tfs.core.loader import Loader
from tfs.core.process_memory import MemoryReleaser, release_to_system
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ServableState
from tfs.core.source import AspiredVersionsCallback
from tfs.core.system.limits import num_processors

log = logging.getLogger(__name__)


def unloads_first(action: Action) -> int:
    """Puts unloads before loads; otherwise actions keep the order in which they came up."""
    return 0 if action.kind is ActionKind.UNLOAD else 1


@dataclass(frozen=True, slots=True)
class AspiredVersionsManagerOptions:
    """How versions change. Immutable.

    Attributes:
        transition_policy: The policy of servables without one of their own.
        retry: When failed loads are tried again.
        order: Which actions come first when several are possible.
        pre_load_hook: Called before a version is loaded, on the load pool.
        release_memory: Called after unloads, on the unload pool; None for nothing.
        patience_s: How long a load or an unload may take before others go on without it.

    """

    transition_policy: TransitionPolicy = availability_preserving
    retry: RetryOptions = field(default_factory=RetryOptions)
    order: ActionOrder = unloads_first
    pre_load_hook: Callable[[ServableId], None] | None = None
    release_memory: Callable[[], None] | None = release_to_system
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        if not self.patience_s > 0:
            raise ValueError(f"patience_s must be positive: {self.patience_s}")


class AspiredVersionsManager:
    """A target of loaders and the manager of what they load.

    Thread-safe. It never unloads an aspired version, never loads one loader twice,
    and loads and unloads a version by the same loader. Owns both executors: ``close``
    ends them.

    Example:
        manager = AspiredVersionsManager(event_bus=bus)
        connect(adapter, manager)
        manager.start()
        handle = manager.serving_map.acquire("digits")

    Args:
        options: How versions change.
        event_bus: Where states are published; None publishes nothing.
        clock: For retries and waits.
        load_executor: Runs loads; None runs them within ``step``.
        unload_executor: Runs unloads; None runs them within ``step``.
        resource_tracker: What loads reserve from; None lets every load through.

    Attributes:
        annotate: Adds a note and a measurement to a version's state, now or with the
            next; see :meth:`.VersionTable.annotate`.

    """

    def __init__(
        self,
        options: AspiredVersionsManagerOptions | None = None,
        *,
        event_bus: EventBus[ServableState] | None = None,
        clock: Clock | None = None,
        load_executor: Executor | None = None,
        unload_executor: Executor | None = None,
        resource_tracker: ResourceTracker | None = None,
    ) -> None:
        self._options = options or AspiredVersionsManagerOptions()
        self._clock = clock or MonotonicClock()
        self._load_executor = load_executor or InlineExecutor()
        self._is_lending = False
        self._unload_executor = unload_executor or InlineExecutor()
        self._driver = Driver(self.step, self._clock, "manager")
        self._inbox = Inbox(self._driver.wake)
        release = self._options.release_memory
        self._table = VersionTable(event_bus, self._clock, self._options.retry)
        # The table's own: no method of ours is put around it.
        self.annotate = self._table.annotate
        self._executor = VersionExecutor(
            self._table,
            self._load_executor,
            self._unload_executor,
            self._clock,
            tracker=resource_tracker,
            releaser=release and MemoryReleaser(self._clock, release),
            pre_load_hook=self._options.pre_load_hook,
            patience_s=self._options.patience_s,
            on_change=self._inbox.note_change,
        )
        # Confines stepping to one thread at a time, and guards what follows. First in
        # rank: held during a whole step, with inline executors during loads too.
        self._stepping = threading.Lock()
        self._actions = ActionQueue(self._options.order)
        self._retrier = Retrier(
            self._table, self._executor, self._options.retry, self._clock
        )
        self._planner = Planner(
            self._table,
            self._executor,
            self._options.transition_policy,
            self._inbox.note_change,
        )
        self._on_taken_in: Callable[[], None] = lambda: None

    # -- requests --------------------------------------------------------------------

    @property
    def serving_map(self) -> ServingMap:
        """Where request handlers pin versions; the same object for ever."""
        return self._executor.serving_map

    def acquire(self, request: ServableRequest) -> Handle:
        """Pins the requested version; see :class:`tfs.core.servable_handle.Manager`."""
        return self.serving_map.acquire_request(request)

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns the versions that can be requested now, in order."""
        return self.serving_map.list_ids()

    # -- what is wanted --------------------------------------------------------------

    def aspired_versions_callback(self) -> AspiredVersionsCallback[Loader[object]]:
        """Returns the function for sources to call, which does nothing after ``close``.

        A version that is aspired again with the loader it has, or with one that
        compares equal, stays as it is; so does one that comes back before it was
        unloaded. One that comes with another loader is reloaded: the new one replaces
        it as a new version would. Error items are compared by code and message.
        """
        return self._inbox.aspire

    @property
    def has_taken_in_all(self) -> bool:
        """Whether everything that sources have aspired shows in the published states.

        START has then been published for each version that is to be loaded.
        Thread-safe.
        """
        return self._inbox.has_taken_in_all

    def on_taken_in(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` on the driver's thread each time news of sources was taken in.

        ``fn`` has to be quick and must not raise. It replaces the function set before.
        """
        self._on_taken_in = fn

    def set_transition_policy(self, name: str, policy: TransitionPolicy | None) -> None:
        """Sets how versions of ``name`` change from now on; None: as the options say.

        Takes effect with the next action; actions that have begun go on.
        """
        self._planner.set_policy(name, policy)
        self._inbox.note_change(name)

    def try_again(self, name: str, versions: AbstractSet[int]) -> None:
        """Has failed, aspired versions of ``name`` loaded again soon; never blocks.

        A version that failed begins anew, with all its retries. One that pauses between
        two attempts gets the next one now. One that serves with a fault
        (``report_servable_error``) is loaded a second time, before or after the faulty
        one is unloaded, as its policy says. Others stay as they are.
        ``has_taken_in_all`` tells when this has begun.
        """
        self._inbox.try_again(name, versions)

    def failed_versions(self, name: str) -> AbstractSet[int]:
        """Returns the aspired versions of ``name`` that ``try_again`` would try."""
        return frozenset(
            version.id.version
            for version in self._table.stream(name)
            if version.is_aspired
            and (
                version.state is HarnessState.ERROR
                or version.retry_at_s is not None
                or version.fault is not None
            )
        )

    def report_servable_error(
        self,
        servable_id: ServableId,
        error: ServingError | None,
        *,
        is_loading: bool = False,
    ) -> None:
        """Shows a fault of an available version in its state; None mends it.

        The version stays loaded and aspired, and goes on answering requests: with
        FAILED_PRECONDITION if its interpreter is quarantined (``Quarantined``). Then it is
        tried again after a minute, and after pauses that double up to a quarter of an
        hour if it is quarantined again. With ``is_loading``, the
        fault is shown once the contents that are being loaded serve. Thread-safe.
        """
        if self._table.report_error(servable_id, error, is_loading=is_loading):
            self._inbox.note_change(servable_id.name)

    def is_covered(self, servable_id: ServableId) -> bool:
        """Whether another version answers if the load of this one fails.

        One that serves, that is about to, or that made way and would come back.
        Thread-safe.
        """
        name = servable_id.name
        return self._planner.has_stand_in(name) or any(
            version.state is HarnessState.READY
            or (
                version.id != servable_id
                and version.is_aspired
                and version.state in (HarnessState.NEW, *COMING_STATES)
            )
            for version in self._table.snapshots(name)
        )

    def load_status(self, servable_id: ServableId) -> LoadStatus | None:
        """Returns how a version's load goes or went; None if it is not managed."""
        return self._executor.load_status(servable_id)

    # -- running ---------------------------------------------------------------------

    def start(self) -> None:
        """Starts the driver's thread."""
        self._driver.start()

    @contextlib.contextmanager
    def lend_all_threads(self) -> Iterator[None]:
        """Lets four loads run at once per processor that is ours, for a server's start.

        Afterwards the load pool is as large as before. Without a pool of threads
        nothing changes.
        """
        executor = self._load_executor
        if not isinstance(executor, ThreadExecutor):
            yield
            return
        before = executor.num_threads
        executor.resize(max(before, 4 * num_processors()))
        self._is_lending = True
        self._driver.wake()
        try:
            yield
        finally:
            self._is_lending = False
            executor.resize(before)

    @property
    def disturbs_nobody(self) -> bool:
        """Whether loads need not make way for requests. Thread-safe.

        That is so while a server starts, and while no version can be requested. The
        latter is so, for instance, between two versions of the only model, if the old
        one is unloaded first.
        """
        return self._is_lending or self.serving_map.is_empty

    def close(self, deadline_s: float | None = None) -> bool:
        """Unloads everything, then ends the executors; idempotent.

        Blocks until pins are released and running loads have ended, or until the
        deadline (by the clock). Whatever sources say from now on is ignored.

        Returns:
            Whether everything was unloaded. If not, what is still pinned or loading
            stays as it is.

        """
        self._inbox.close()
        self._driver.close()
        for name in self._table.names():
            self._inbox.note_change(name)
        if not self._driver.step_until(lambda: not self._table.names(), deadline_s):
            return False
        is_loaded_closed = self._load_executor.close(deadline_s)
        return self._unload_executor.close(deadline_s) and is_loaded_closed

    def step(self) -> float | None:
        """Does everything that can be done now; returns when to call it again.

        It begins loads and unloads but waits for none, unless the executors are inline.

        Returns:
            The time, by the clock, when there will be more to do; None if only a change
            can bring something.

        """
        with self._stepping:
            while True:
                next_s = self._executor.collect()
                for name in self._retrier.try_due(is_closing=self.is_closing):
                    self._inbox.note_change(name)
                mail = self._inbox.take()
                for aspired in mail.aspired.values():
                    self._reconcile(aspired)
                for name, numbers in mail.tried_again.items():
                    self._retrier.try_now(name, numbers)
                if mail.aspired or mail.tried_again:
                    self._inbox.confirm(mail)
                    self._on_taken_in()
                changed = dict.fromkeys((*mail.changed, *self._planner.take_waiting()))
                for name in changed:
                    self._flush(name)
                    self._retrier.note_quarantines(name)
                    self._plan(name)
                has_begun = self._begin_actions()
                # There is another pass after every change, because a version that has
                # ended may have made room for a load that waits.
                if not (has_begun or changed or self.has_mail):
                    times_s = (next_s, self._retrier.next_s())
                    return min((t for t in times_s if t is not None), default=None)

    @property
    def num_waiting_loads(self) -> int:
        """How many loads were decided on and wait for a thread or for memory."""
        return self._actions.num_loads + self._executor.admission.num_deferred

    @property
    def is_idle(self) -> bool:
        """Whether nothing loads, unloads or waits to.

        Waits for the step in progress, during which a version that moves on is not
        counted anywhere for a moment.
        """
        with self._stepping:
            return not (
                len(self._actions)
                # Includes loaders that are only asked for an estimate.
                or self._load_executor.num_running
                or self._unload_executor.num_running
                or self._executor.admission.num_executing
                or self._executor.admission.num_deferred
                or self.has_mail
            )

    @property
    def is_closing(self) -> bool:
        """Whether ``close`` was called, so that every version is unloaded."""
        return self._inbox.is_closed

    @property
    def has_mail(self) -> bool:
        """Whether something happened that ``step`` has not looked at yet."""
        return self._inbox.has_mail

    def snapshots(self, name: str) -> list[HarnessSnapshot]:
        """Returns where every version of one servable stands."""
        return self._table.snapshots(name)

    # -- the parts of a step -----------------------------------------------------------

    def _reconcile(self, aspired: Aspired) -> None:
        """Marks versions that are no longer aspired, and begins to manage new ones."""
        todo = reconcile(aspired, self._table.stream(aspired.name))
        for version in todo.wanted_again:
            self._table.want_again(version, aspired.reason)
        for version, why in todo.unaspired:
            self._want_no_more(version, why)
        for version in todo.given_up:
            self._executor.cancel_load(version.id, version.generation)
        for data in todo.new:
            self._table.manage(data, reason=aspired.reason, is_replacement=True)

    def _want_no_more(self, version: Version, why: str) -> None:
        """Notes that no source wants a version any more, and gives up its load."""
        version.is_aspired = False
        version.reason = why
        self._executor.cancel_load(version.id, version.generation)

    def _flush(self, name: str) -> None:
        """Forgets versions that are neither aspired nor loaded."""
        for version in self._table.stream(name):
            if self.is_closing and version.is_aspired:
                self._want_no_more(version, "the server stops")
            if not version.is_aspired and version.is_dormant:
                with contextlib.suppress(FailedPrecondition):
                    self._table.stop_managing(version.id, version.generation)

    def _plan(self, name: str) -> None:
        """Decides what to do next for ``name``."""
        versions = self._decided_on(name)
        if self.is_closing:
            plan: Sequence[Action] = unload_everything(versions)
        else:
            for version in self._planner.stand_back(name, versions):
                self._retrier.stand_back(version)
            versions = self._decided_on(name)
            plan = self._planner.plan(name, versions)
            if not plan:
                self._retrier.hurry(name, versions)
        self._actions.put(name, plan)

    def _decided_on(self, name: str) -> list[HarnessSnapshot]:
        return [version.as_decided_on() for version in self._table.stream(name)]

    def _begin_actions(self) -> bool:
        """Begins as many actions as the pools can take; returns whether it began any.

        An unload can begin without a free thread, because it first takes the version
        out of service and waits for its pins.
        """
        has_begun = False
        while action := self._actions.take(may_load=self._may_load()):
            self._begin(action)
            has_begun = True
        return has_begun

    def _may_load(self) -> bool:
        return self._load_executor.num_running < self._load_executor.num_threads

    def _begin(self, action: Action) -> None:
        version = self._table.find(action.id, action.generation)
        if version is None and action.kind is ActionKind.LOAD:
            version = self._bring_back(action)
        if version is None:  # the policy has named a version that does not exist
            log.error("event=no_such_version servable=%s", action.id.slashed)
            return
        if action.kind is ActionKind.UNLOAD and not self._table.is_replaced(version):
            self._planner.note_unload(version)
        parts = dict.fromkeys((version.reason, action.why))
        reason = "; ".join(filter(None, parts))
        executor = self._executor
        begin = executor.load if action.kind is ActionKind.LOAD else executor.unload
        with contextlib.suppress(FailedPrecondition):  # it has moved on by itself
            begin(action.id, generation=version.generation, reason=reason)
        name = action.id.name
        if self._inbox.has_changed(name):
            # The rest of the plan may be out of date: the servable is planned anew.
            self._actions.drop(name)

    def _bring_back(self, action: Action) -> Version | None:
        """Manages a version again that was unloaded for one which then failed."""
        data = self._planner.take_stand_in(
            action, self._table.snapshots(action.id.name)
        )
        if data is None:
            return None
        failed = self._table.find(action.id)  # if other contents of the version did
        version = self._table.manage(
            data,
            reason=action.why,
            is_replacement=True,
            is_aspired=False,
            heir_error=None if failed is None else failed.error,
        )
        self._inbox.note_change(action.id.name)
        return version
