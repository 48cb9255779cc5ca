"""Makes what is loaded follow what sources aspire.

Everything is decided in ``step``: it takes in what sources said, forgets what is
over, asks each changed servable's transition policy what to do next, and begins as
much of it as the pools can take. Tests call ``step`` themselves; a server starts the
driver, which calls it when something changed. Nothing is polled: TensorFlow Serving
takes one action in the whole server per 100 ms.

Only servables that something happened to are looked at, so a step costs what changed
and not what is managed.

(TensorFlow Serving: core/aspired_versions_manager.h.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from managers.action_queue import ActionOrder, ActionQueue
from managers.basic_manager import PATIENCE_S, BasicManager, LoaderData
from managers.driver import Driver
from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import END_STATES, HarnessState
from managers.load_status import LoadStatus
from managers.loader_harness import LoaderHarness
from managers.memory import MemoryReleaser, release_to_system
from managers.planning_pace import PlanningPace
from managers.resource_tracker import ResourceTracker
from managers.retry import RetryOptions
from managers.room_check import RoomCheck
from managers.serving_map import Handle, ServingMap
from managers.stand_ins import StandIns
from managers.version_policy.action import Action, ActionKind, TransitionPolicy, unload
from managers.version_policy.availability_preserving import availability_preserving
from tfs.core.clock import Clock, MonotonicClock, steady
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor, InlineExecutor, ThreadExecutor
from tfs.core.loader import Loader
from tfs.core.servable_data import AspiredVersions
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ServableState
from tfs.core.source import AspiredVersionsCallback

log = logging.getLogger(__name__)

_AT_REST: Final = END_STATES | {HarnessState.READY, HarnessState.NEW}

Aspired: TypeAlias = AspiredVersions[Loader[object]]


def unloads_first(action: Action) -> int:
    """Orders unloads before loads, otherwise as they became known."""
    return 0 if action.kind is ActionKind.UNLOAD else 1


@dataclass(frozen=True, slots=True)
class AspiredVersionsManagerOptions:
    """How versions change. Immutable.

    Attributes:
        transition_policy: For servables without one of their own.
        retry: When failed loads are tried again.
        order: Which of the actions that are possible at the same time come first.
        num_initial_load_threads: How many loads may run at once while
            ``lend_all_threads`` is in force; None is four per CPU.
        pre_load_hook: Called before a version is loaded, on the load pool.
        release_memory: Called after unloads, on the unload pool; None for nothing.
        patience_s: How long a load or an unload may take before others go on without it.

    """

    transition_policy: TransitionPolicy = availability_preserving
    retry: RetryOptions = field(default_factory=RetryOptions)
    order: ActionOrder = unloads_first
    num_initial_load_threads: int | None = None
    pre_load_hook: Callable[[ServableId], None] | None = None
    release_memory: Callable[[], None] | None = release_to_system
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        num = self.num_initial_load_threads
        if num is not None and num < 1:
            raise ValueError(f"num_initial_load_threads must be positive: {num}")


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
        self._clock = steady(clock or MonotonicClock())
        self._load_executor = load_executor or InlineExecutor()
        self._is_lending = False
        self._unload_executor = unload_executor or InlineExecutor()
        release = self._options.release_memory
        self._basic = BasicManager(
            event_bus=event_bus,
            load_executor=self._load_executor,
            unload_executor=self._unload_executor,
            clock=self._clock,
            tracker=resource_tracker,
            retry=self._options.retry,
            releaser=release and MemoryReleaser(self._clock, release),
            pre_load_hook=self._options.pre_load_hook,
            on_change=self._note_change,
            patience_s=self._options.patience_s,
        )
        self._driver = Driver(self.step, self._clock, "manager")
        # Confines stepping to one thread at a time, and guards _actions, _pace, _room and
        # _stand_ins. First in rank: held during a whole step, with inline executors during
        # loads too.
        self._stepping = threading.Lock()
        self._actions = ActionQueue(self._options.order)
        self._pace = PlanningPace()
        self._room = RoomCheck(self._basic.preflight)
        self._stand_ins = StandIns()
        # Guards the fields below. Ranks after everything but the driver's: taken by
        # on_change and by sources, on any thread; nothing is called under it.
        self._inbox = threading.Condition()
        self._pending: dict[str, Aspired] = {}
        self._dirty: dict[str, bool] = {}  # whether it cannot wait
        self._policies: dict[str, TransitionPolicy] = {}
        self._is_closing = False
        self._num_changes = 0
        self._num_aspired = 0  # sets that sources gave
        self._num_taken_in = 0  # of those, compared with what is managed
        self._on_taken_in: Callable[[], None] = lambda: None

    # -- requests --------------------------------------------------------------------

    @property
    def serving_map(self) -> ServingMap:
        """Where request handlers pin versions; the same object for ever."""
        return self._basic.serving_map

    def acquire(self, request: ServableRequest) -> Handle:
        """Pins the requested version; see :class:`tfs.core.manager.Manager`."""
        return self._basic.acquire(request)

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns the versions that can be requested now, in order."""
        return self._basic.list_available_ids()

    # -- what is wanted --------------------------------------------------------------

    def aspired_versions_callback(self) -> AspiredVersionsCallback[Loader[object]]:
        """Returns the function for sources to call; does nothing once closed.

        A version that is aspired again with the loader it has, or with one that
        compares equal, stays as it is; so does one that comes back before it was
        unloaded. One that comes with another loader is reloaded: the new one replaces
        it as a new version would. Error items are compared by code and message.
        """
        return self._aspire

    @property
    def has_taken_in_all(self) -> bool:
        """Whether what sources said so far shows in the states that are published.

        What is to be loaded because of it has published START. Thread-safe.
        """
        with self._inbox:
            return self._num_taken_in == self._num_aspired

    def on_taken_in(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` on the driver's thread whenever sources' words were taken in.

        Quick, and it does not raise. Replaces the function before.
        """
        self._on_taken_in = fn

    def set_transition_policy(self, name: str, policy: TransitionPolicy | None) -> None:
        """Sets how versions of ``name`` change from now on; None: as the options say.

        Takes effect with the next action; what has begun goes on.
        """
        with self._inbox:
            if policy is None:
                self._policies.pop(name, None)
            else:
                self._policies[name] = policy
            self._dirty[name] = True
        self._note_change(name)

    def report_servable_error(
        self, servable_id: ServableId, error: ServingError | None
    ) -> None:
        """Shows a fault of an available version in its state; None mends it.

        The version stays loaded and aspired: it answers requests itself, with
        FAILED_PRECONDITION if its interpreter is quarantined. Thread-safe.
        """
        self._basic.report_error(servable_id, error)

    def annotate(
        self,
        servable_id: ServableId,
        *,
        note: str | None = None,
        resident_bytes: int | None = None,
    ) -> None:
        """Adds what was found out about an available version to its state."""
        self._basic.annotate(servable_id, note=note, resident_bytes=resident_bytes)

    def load_status(self, servable_id: ServableId) -> LoadStatus | None:
        """Returns how a version's load goes or went; None if it is not managed."""
        return self._basic.load_status(servable_id)

    # -- running ---------------------------------------------------------------------

    def start(self) -> None:
        """Starts the driver's thread."""
        self._driver.start()

    @contextlib.contextmanager
    def lend_all_threads(self) -> Iterator[None]:
        """Lets many loads run at once, for a server's start.

        Afterwards the load pool is as large as before. Without a pool of threads
        nothing changes.
        """
        executor = self._load_executor
        if not isinstance(executor, ThreadExecutor):
            yield
            return
        before = executor.num_threads
        lent = self._options.num_initial_load_threads or 4 * (os.cpu_count() or 1)
        executor.resize(max(before, lent))
        self._is_lending = True
        self._driver.wake()
        try:
            yield
        finally:
            self._is_lending = False
            executor.resize(before)

    @property
    def is_lending(self) -> bool:
        """Whether ``lend_all_threads`` is in force: loads have nobody to make way for."""
        return self._is_lending

    def close(self, deadline_s: float | None = None) -> bool:
        """Unloads everything, then ends the executors; idempotent.

        Blocks until pins are released and loads that run have ended, or until the
        deadline (by the clock). What sources say from now on is ignored.

        Returns:
            Whether everything was unloaded. If not, what is still pinned or loading
            stays as it is.

        """
        with self._inbox:
            self._is_closing = True
            self._pending.clear()
            self._dirty.update(dict.fromkeys(self._basic.names(), True))
        self._driver.close()
        while True:
            with self._inbox:
                seen = self._num_changes
            next_s = self.step()
            if not self._basic.names():
                break
            with self._inbox:
                while seen == self._num_changes:
                    now_s = self._clock.now()
                    if deadline_s is not None and now_s >= deadline_s:
                        return False
                    if next_s is not None and now_s >= next_s:
                        break
                    times_s = [t for t in (next_s, deadline_s) if t is not None]
                    self._clock.wait(self._inbox, min(times_s, default=None))
        is_loaded_closed = self._load_executor.close(deadline_s)
        return self._unload_executor.close(deadline_s) and is_loaded_closed

    def step(self) -> float | None:
        """Does all that can be done now; returns when there will be more by itself.

        Begins loads and unloads and waits for none, unless executors are inline.

        Returns:
            The time, by the clock, when it wants to run again; None while only a
            change can bring something.

        """
        with self._stepping:
            while True:
                next_s = self._basic.collect()
                pending, dirty, num_aspired = self._take_inbox()
                for aspired in pending.values():
                    self._reconcile(aspired)
                if pending:
                    self._note_taken_in(num_aspired)
                dirty.update(dict.fromkeys(self._room.take_waiting(), True))
                now_s = self._clock.now()
                urgent = [*pending, *(name for name in dirty if dirty[name])]
                due = self._pace.take_due(dirty, urgent, now_s)
                for name in due:
                    self._flush(name)
                    self._plan(name, now_s)
                has_begun = self._begin_actions()
                # Looked at again after every change: what ended may have made room
                # for a load that waits.
                if not (has_begun or dirty or pending or self.has_mail):
                    times_s = [
                        t for t in (next_s, self._pace.next_s()) if t is not None
                    ]
                    return min(times_s, default=None)

    @property
    def num_waiting_loads(self) -> int:
        """Loads decided on that wait for a thread or for memory: not idle if > 0."""
        return self._actions.num_loads + self._basic.num_deferred

    @property
    def is_idle(self) -> bool:
        """Whether nothing loads, unloads or waits to: a time for measuring models."""
        return not (
            len(self._actions)
            or self._basic.num_executing
            or self._basic.num_deferred
            or self.has_mail
        )

    @property
    def is_closing(self) -> bool:
        """Whether ``close`` was called: everything goes."""
        return self._is_closing

    @property
    def has_mail(self) -> bool:
        """Whether something happened that ``step`` has not looked at yet."""
        with self._inbox:
            return bool(self._pending or self._dirty)

    def snapshots(self, name: str) -> list[HarnessSnapshot]:
        """Returns where every version of one servable stands."""
        return self._basic.snapshots(name)

    # -- the parts of a step -----------------------------------------------------------

    def _aspire(self, aspired: Aspired) -> None:
        with self._inbox:
            if self._is_closing:
                return
            self._pending[aspired.name] = aspired
            self._num_aspired += 1
        self._note_change(aspired.name)

    def _note_change(self, name: str) -> None:
        with self._inbox:
            self._dirty.setdefault(name, False)
            self._num_changes += 1
            self._inbox.notify_all()
        self._driver.wake()

    def _take_inbox(self) -> tuple[dict[str, Aspired], dict[str, bool], int]:
        with self._inbox:
            pending, self._pending = self._pending, {}
            dirty, self._dirty = self._dirty, {}
            return pending, dirty, self._num_aspired

    def _note_taken_in(self, num_aspired: int) -> None:
        with self._inbox:
            self._num_taken_in = num_aspired
        self._on_taken_in()

    def _reconcile(self, aspired: Aspired) -> None:
        """Marks what is no longer aspired and takes in what is new."""
        wanted: dict[int, LoaderData] = {}
        for data in aspired.versions:
            if data.id.version in wanted:
                log.warning("event=version_aspired_twice servable=%s", data.id.slashed)
            wanted[data.id.version] = data
        reason = aspired.reason
        kept: set[int] = set()
        unwanted: list[LoaderHarness] = []
        for harness in self._basic.harnesses(aspired.name):
            data_now = wanted.get(harness.id.version)
            if not harness.is_aspired:
                if data_now and _can_return(harness, data_now):
                    self._basic.want_again(harness, reason)
                    kept.add(harness.id.version)
                else:
                    unwanted.append(harness)
            elif data_now is None:
                self._unaspire(harness, reason or "no longer aspired")
            elif harness.holds(data_now):
                kept.add(harness.id.version)
            else:
                self._unaspire(harness, f"replaced by its new contents; {reason}")
        if not wanted or wanted.keys() - kept:
            for harness in unwanted:  # what stood in for others is in the way
                self._basic.cancel_load(harness.id, harness.generation)
        for version, data in wanted.items():
            if version not in kept:
                self._basic.manage(data, reason=reason, is_replacement=True)

    def _unaspire(self, harness: LoaderHarness, reason: str) -> None:
        harness.is_aspired = False
        harness.reason = reason
        self._basic.cancel_load(harness.id, harness.generation)

    def _flush(self, name: str) -> None:
        """Forgets what is neither aspired nor loaded."""
        for harness in self._basic.harnesses(name):
            if self._is_closing:
                self._unaspire_for_close(harness)
            if not harness.is_aspired and harness.is_dormant:
                with contextlib.suppress(FailedPrecondition):
                    self._basic.stop_managing(harness.id, harness.generation)

    def _unaspire_for_close(self, harness: LoaderHarness) -> None:
        if harness.is_aspired:
            self._unaspire(harness, "the server stops")

    def _plan(self, name: str, now_s: float) -> None:
        """Asks the policy what to do next for ``name``."""
        versions = self._stand_ins.beside(name, self._basic.snapshots(name))
        policy = self._policies.get(name, self._options.transition_policy)
        try:
            if self._is_closing:
                plan: Sequence[Action] = _unload_everything(versions)
            else:
                plan = self._room.plan(name, policy, versions)
        except Exception:  # one servable's policy must not stop the others
            log.exception("event=transition_policy_failed name=%s", name)
            plan = ()
        plan = _without_waiting(plan, versions)
        self._actions.put(name, self._without_asking(plan, versions))
        self._pace.note(name, len(versions), now_s)

    def _without_asking(
        self, plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Leaves out loads of versions whose loader is at work already."""
        asking = {v.generation for v in versions if self._basic.preflight.is_asking(v)}
        if not asking:
            return plan
        return [action for action in plan if action.generation not in asking]

    def _begin_actions(self) -> bool:
        """Begins what the pools can take; returns whether anything was begun.

        An unload needs no free thread to begin: it first takes the version out of
        service and waits for its pins.
        """
        has_begun = False
        while action := self._actions.take(may_load=self._may_load()):
            self._begin(action)
            has_begun = True
        return has_begun

    def _may_load(self) -> bool:
        # Not num_free: a thread that has just ended a load is not free yet, and
        # nothing would say when it is.
        return self._basic.num_running_loads < self._load_executor.num_threads

    def _begin(self, action: Action) -> None:
        harness = self._basic.harness(action.id, action.generation)
        if harness is None and action.kind is ActionKind.LOAD:
            harness = self._bring_back(action)
        if harness is None:  # a policy that names what there is not
            log.error("event=no_such_version servable=%s", action.id.slashed)
            return
        if action.kind is ActionKind.UNLOAD:
            self._stand_ins.note_unload(harness)
        parts = dict.fromkeys((harness.reason, action.why))
        reason = "; ".join(filter(None, parts))
        begin = (
            self._basic.load if action.kind is ActionKind.LOAD else self._basic.unload
        )
        begin(action.id, generation=harness.generation, reason=reason)
        name = action.id.name
        with self._inbox:
            has_changed = name in self._dirty
        if has_changed and not self._pace.is_resting(name):
            # What else was planned may have been overtaken: it is asked anew at once.
            self._actions.drop(name)

    def _bring_back(self, action: Action) -> LoaderHarness | None:
        """Manages anew what was unloaded for versions that failed."""
        data = self._stand_ins.take(action, self._basic.snapshots(action.id.name))
        if data is None:
            return None
        failed = self._basic.snapshot(action.id)  # if other contents of it did
        harness = self._basic.manage(
            data,
            reason=action.why,
            is_replacement=True,
            is_aspired=False,
            heir_error=None if failed is None else failed.error,
        )
        self._note_change(action.id.name)
        return harness


def _can_return(harness: LoaderHarness, data: LoaderData) -> bool:
    """Whether a version that is aspired again can simply go on serving, or loading."""
    is_up = harness.state is HarnessState.READY or harness.is_coming
    return is_up and harness.holds(data)


def _without_waiting(
    plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
) -> Sequence[Action]:
    """Leaves out loads of versions whose elder is still on its way out.

    That is gone first, unless it takes so long that nobody waits for it. One that serves
    may stay meanwhile; whether it does is the policy's to say.
    """
    oldest_on_its_way: dict[int, int] = {}
    for v in versions:
        if v.state not in _AT_REST and (v.is_aspired or not v.is_late):
            before = oldest_on_its_way.setdefault(v.id.version, v.generation)
            oldest_on_its_way[v.id.version] = min(before, v.generation)
    if not oldest_on_its_way:
        return plan
    return [
        action
        for action in plan
        if action.kind is not ActionKind.LOAD
        or oldest_on_its_way.get(action.id.version, action.generation)
        >= action.generation
    ]


def _unload_everything(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """The policy of a manager that closes."""
    return [unload(v, "") for v in versions if v.state is HarnessState.READY]
