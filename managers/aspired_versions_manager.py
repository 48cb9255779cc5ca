"""Makes what is loaded follow what is aspired.

A call says which versions of one servable should exist: omission means unload. The
manager compares that with what it manages, asks each stream's transition policy for
the next step, and runs as many steps as its pools can take. Three promises:

1. a version is loaded and unloaded through one loader object; a version that comes
   back gets the new one, after the old one is gone;
2. an aspired version is never unloaded;
3. calls for one name supersede each other, calls for different names are independent.

``step`` does one round and never blocks; a thread of ours calls it when something
changed, a test calls it by hand. (TensorFlow Serving: core/aspired_versions_manager.h.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from managers.basic_manager import BasicManager
from managers.loader_harness import HarnessState, RetryOptions
from managers.serving_map import ServingMap
from managers.state_monitor import ServableStateMonitor
from managers.version_policy.availability_preserving import AvailabilityPreservingPolicy
from managers.version_policy.policy import (
    Action,
    ActionKind,
    TransitionPolicy,
    VersionSnapshot,
)
from tfs.core.clock import Clock
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor
from tfs.core.loader import Loader
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ServableState
from tfs.core.source import AspiredVersionsCallback

log = logging.getLogger(__name__)

_ENDED: Final = (HarnessState.NEW, HarnessState.DISABLED, HarnessState.ERROR)
"""States in which an un-aspired version is forgotten."""

Versions = AspiredVersions[Loader[object]]
_Payload = ServableData[Loader[object]]


class AspiredVersionsManager:
    """Loads, swaps and unloads as aspired. Thread-safe.

    ``acquire`` is for requests; the callback is for sources; ``step`` belongs to the
    manager's thread, or to a test that starts none.
    """

    def __init__(
        self,
        *,
        bus: EventBus[ServableState],
        clock: Clock,
        load_executor: Executor,
        unload_executor: Executor,
        retry: RetryOptions | None = None,
    ) -> None:
        self.monitor = ServableStateMonitor(bus, clock)
        self._clock = clock
        self._load_executor = load_executor
        self._unload_executor = unload_executor
        self._manager = BasicManager(
            bus=bus,
            clock=clock,
            load_executor=load_executor,
            unload_executor=unload_executor,
            retry=retry or RetryOptions(),
            on_progress=self._wake,
        )
        # Guards the fields below and wakes the thread. Leaf: nothing is called
        # under it.
        self._changed = threading.Condition()
        self._pending: dict[str, Versions] = {}
        self._policies: dict[str, TransitionPolicy] = {}
        self._woken = False
        self._num_changes = 0  # wake-ups and steps so far, for whoever drains
        self._closed = False
        self._thread: threading.Thread | None = None
        # Confined to whoever steps: aspired payloads, and why they are (not).
        self._aspired: dict[ServableId, _Payload] = {}
        self._managed_payload: dict[ServableId, _Payload] = {}
        self._reasons: dict[str, str] = {}

    @property
    def serving_map(self) -> ServingMap:
        """Where requests look versions up."""
        return self._manager.serving_map

    def acquire(self, request: ServableRequest) -> ServableHandle[object]:
        """Pins the requested version; see :class:`tfs.core.manager.Manager`."""
        return self.serving_map.acquire_requested(request)

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns the versions that can be requested now, in order."""
        return self.serving_map.ids()

    def aspired_versions_callback(self) -> AspiredVersionsCallback[Loader[object]]:
        """Returns the function for sources to call; it only takes notes."""
        return self._take

    def set_transition_policy(self, name: str, policy: TransitionPolicy) -> None:
        """Decides about ``name`` by ``policy`` from the next step on."""
        with self._changed:
            self._policies[name] = policy
        self._wake()

    def start(self) -> None:
        """Steps whenever something changes, on a daemon thread."""
        self._thread = threading.Thread(target=self._run, name="manager", daemon=True)
        self._thread.start()

    def close(self, deadline_s: float | None = None) -> bool:
        """Unloads everything, ends the thread and the pools; idempotent.

        Returns whether all was done by the deadline.
        """
        for servable_id, _ in self._manager.managed():
            self._manager.cancel_load(servable_id)
        with self._changed:
            names = {servable_id.name for servable_id, _ in self._manager.managed()}
            for name in names | self._pending.keys():
                self._pending[name] = AspiredVersions(name, (), "the server stops")
        self._wake()
        done = self._drain(deadline_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_left_s(self._clock, deadline_s))
        for executor in (self._load_executor, self._unload_executor):
            done = executor.close(deadline_s) and done
        self.monitor.close()
        return done

    def _drain(self, deadline_s: float | None) -> bool:
        """Waits until nothing is managed, stepping by hand if no thread does."""
        while True:
            with self._changed:
                seen = self._num_changes
            if self._thread is None:
                while self.step():
                    pass
            if not self._manager.managed() and not self._pending:
                return True
            with self._changed:
                while self._num_changes == seen:
                    if deadline_s is not None and self._clock.now() >= deadline_s:
                        return False
                    self._clock.wait(self._changed, deadline_s)

    # -- one round -------------------------------------------------------------------

    def step(self) -> bool:
        """Takes up what is pending, forgets what has ended, starts what is next.

        Never blocks with pools of threads. Returns whether anything was done, so
        that another step may find more.
        """
        forgot = self._forget_ended()
        took = self._take_pending()
        acted = self._act()
        return forgot or took or acted

    def _forget_ended(self) -> bool:
        gone = [
            servable_id
            for servable_id, state in self._manager.managed()
            if servable_id not in self._aspired and state in _ENDED
        ]
        for servable_id in gone:
            self._manager.stop_managing(servable_id)
            self._managed_payload.pop(servable_id, None)
        return bool(gone)

    def _take_pending(self) -> bool:
        with self._changed:
            pending = list(self._pending.values())
        took = False
        managed = dict(self._manager.managed()) if pending else {}
        for aspired in pending:
            if self._must_wait(aspired, managed):
                continue
            with self._changed:
                if self._pending.get(aspired.name) is aspired:
                    del self._pending[aspired.name]
            self._follow(aspired, managed)
            took = True
        return took

    def _must_wait(
        self, aspired: Versions, managed: dict[ServableId, HarnessState]
    ) -> bool:
        """Whether a version that comes back is still on its way out."""
        return any(
            data.id in managed and data.id not in self._aspired
            for data in aspired.versions
        )

    def _follow(
        self, aspired: Versions, managed: dict[ServableId, HarnessState]
    ) -> None:
        self._reasons[aspired.name] = aspired.reason
        wanted = {data.id: data for data in aspired.versions}
        for servable_id in managed:
            if servable_id.name == aspired.name and servable_id not in wanted:
                self._aspired.pop(servable_id, None)
                self._manager.cancel_load(servable_id)
        for servable_id, data in wanted.items():
            self._aspired[servable_id] = data
            if servable_id not in managed:
                self._managed_payload[servable_id] = data
                self._manager.manage(data, aspired.reason)

    def _act(self) -> bool:
        by_name: dict[str, list[VersionSnapshot]] = {}
        for servable_id, state in self._manager.managed():
            by_name.setdefault(servable_id.name, []).append(
                VersionSnapshot(servable_id, state, servable_id in self._aspired)
            )
        actions: list[Action] = []
        for name, versions in by_name.items():
            policy = self._policies.get(name) or AvailabilityPreservingPolicy()
            action = policy.next_action(versions)
            if action is not None:
                actions.append(action)
        actions.sort(key=lambda action: action.kind.value)
        room = {
            ActionKind.UNLOAD: self._unload_executor.num_free,
            ActionKind.LOAD: self._load_executor.num_free,
        }
        acted = False
        for action in actions:
            if room[action.kind] <= 0:
                continue
            room[action.kind] -= 1
            reason = self._reasons.get(action.id.name, "")
            if action.kind is ActionKind.UNLOAD:
                self._manager.unload(action.id, reason)
            else:
                self._manager.load(action.id, reason)
            acted = True
        return acted

    # -- being told ------------------------------------------------------------------

    def _take(self, aspired: Versions) -> None:
        with self._changed:
            if self._closed:
                return
            self._pending[aspired.name] = aspired
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._woken = True
            self._num_changes += 1
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._woken and not self._closed:
                    self._clock.wait(self._changed)
                if self._closed:
                    return
                self._woken = False
            try:
                while self.step():
                    pass
                self._note_step()
            except Exception:
                log.exception("event=manager_step_failed")

    def _note_step(self) -> None:
        with self._changed:
            self._num_changes += 1
            self._changed.notify_all()


def _left_s(clock: Clock, deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - clock.now())
