"""Loads and unloads versions when told to; decides nothing.

Each load or unload has a decision phase, short and under the manager's lock, and an
execution phase on the load or the unload pool, under no lock at all. The order of
published states is a promise (docs/lifecycle.md): AVAILABLE after the version can be
requested, UNLOADING before it cannot. (TensorFlow Serving: core/basic_manager.h.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from managers.loader_harness import HarnessState, LoaderHarness, RetryOptions
from managers.memory import release_to_system
from managers.serving_map import ServingMap
from tfs.core.clock import Clock
from tfs.core.errors import FailedPrecondition, NotFound, ServingError
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor
from tfs.core.loader import Loader
from tfs.core.servable_data import ServableData
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState

log = logging.getLogger(__name__)

Harness = LoaderHarness[object]
_STOPPABLE = (HarnessState.NEW, HarnessState.DISABLED, HarnessState.ERROR)


class BasicManager:
    """Keeps harnesses and runs their loads and unloads. Thread-safe.

    Args:
        bus: Where states are published.
        clock: For pauses between tries and waits for pins.
        load_executor: Runs loads.
        unload_executor: Runs unloads, each until its pins are gone.
        retry: How failed loads are repeated.
        on_progress: Called after each load and unload that ended, on its thread.

    """

    def __init__(
        self,
        *,
        bus: EventBus[ServableState],
        clock: Clock,
        load_executor: Executor,
        unload_executor: Executor,
        retry: RetryOptions,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.serving_map = ServingMap()
        self._bus = bus
        self._clock = clock
        self._load_executor = load_executor
        self._unload_executor = unload_executor
        self._retry = retry
        self._on_progress = on_progress
        # Guards the two tables. Rank: after the source's, before the event bus.
        # Held for decisions only: no loader, callback, event or wait under it.
        self._lock = threading.Lock()
        self._harnesses: dict[ServableId, Harness] = {}
        self._handles: dict[ServableId, ServableHandle[object]] = {}

    def manage(self, data: ServableData[Loader[object]], reason: str = "") -> None:
        """Takes a version under management; it is not loaded yet.

        A version that carries an error ends at once, with that error in its state.

        Raises:
            FailedPrecondition: It is managed already; nothing changed.

        """
        harness = Harness(data.id, data.payload, self._clock, self._retry)
        with self._lock:
            if data.id in self._harnesses:
                raise FailedPrecondition(
                    f"This servable is already being managed: {data.id}"
                )
            self._harnesses[data.id] = harness
        self._publish(data.id, ManagerState.START, reason, data.error)
        if data.error is not None:
            harness.fail(data.error)
            self._publish(data.id, ManagerState.END, reason, data.error)

    def stop_managing(self, servable_id: ServableId) -> None:
        """Forgets a version that was never loaded, or has ended.

        Raises:
            FailedPrecondition: It is not managed, or in use; nothing changed.

        """
        with self._lock:
            harness = self._harnesses.get(servable_id)
            if harness is None:
                raise FailedPrecondition(
                    f"This servable is not being managed: {servable_id}"
                )
            if harness.state not in _STOPPABLE:
                raise FailedPrecondition(
                    "This servable is not in a new or end state and we cannot stop "
                    f"managing it: {servable_id} {harness.state.value}"
                )
            del self._harnesses[servable_id]

    def load(self, servable_id: ServableId, reason: str = "") -> None:
        """Starts to load a version on the load pool; returns at once.

        Raises:
            NotFound: It is not managed.
            FailedPrecondition: It was asked for before; nothing changed.

        """
        with self._lock:
            harness = self._find_locked(servable_id)
            harness.transition(HarnessState.LOAD_REQUESTED)
            harness.transition(HarnessState.LOAD_APPROVED)
        self._load_executor.submit(partial(self._load, harness, reason))

    def unload(self, servable_id: ServableId, reason: str = "") -> None:
        """Starts to unload a version on the unload pool; returns at once.

        Raises:
            NotFound: It is not managed.
            FailedPrecondition: It is not loaded, or being unloaded; nothing changed.

        """
        with self._lock:
            harness = self._find_locked(servable_id)
            harness.transition(HarnessState.UNLOAD_REQUESTED)
        self._unload_executor.submit(partial(self._unload, harness, reason))

    def cancel_load(self, servable_id: ServableId) -> None:
        """Ends the retries of a load at once; harmless when there are none."""
        with self._lock:
            harness = self._harnesses.get(servable_id)
        if harness is not None:
            harness.cancel_load()

    def managed(self) -> Sequence[tuple[ServableId, HarnessState]]:
        """Returns every managed version with its state."""
        with self._lock:
            return [(each.id, each.state) for each in self._harnesses.values()]

    def _find_locked(self, servable_id: ServableId) -> Harness:
        harness = self._harnesses.get(servable_id)
        if harness is None:
            raise NotFound(
                f"This servable is not being managed by the manager: {servable_id}"
            )
        return harness

    # -- on the pools ----------------------------------------------------------------

    def _load(self, harness: Harness, reason: str) -> None:
        self._publish(harness.id, ManagerState.LOADING, reason)
        try:
            if harness.load() and harness.loader is not None:
                handle = ServableHandle(harness.id, harness.loader.servable)
                with self._lock:
                    self._handles[harness.id] = handle
                self.serving_map.add(handle)
                self._publish(harness.id, ManagerState.AVAILABLE, reason)
            else:
                self._publish(harness.id, ManagerState.END, reason, harness.error)
        finally:
            self._on_progress()

    def _unload(self, harness: Harness, reason: str) -> None:
        try:
            harness.transition(HarnessState.QUIESCING)
            self._publish(harness.id, ManagerState.UNLOADING, reason)
            with self._lock:
                handle = self._handles.pop(harness.id)
            self.serving_map.remove(handle)
            handle.wait_unpinned(self._clock)
            harness.transition(HarnessState.QUIESCED)
            # The last reference is dropped here, on a manager thread.
            del handle
            harness.unload()
            release_to_system()
            self._publish(harness.id, ManagerState.END, reason)
        finally:
            self._on_progress()

    def _publish(
        self,
        servable_id: ServableId,
        state: ManagerState,
        reason: str,
        error: ServingError | None = None,
    ) -> None:
        self._bus.publish(ServableState(servable_id, state, error, reason))
