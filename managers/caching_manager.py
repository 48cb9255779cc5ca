"""Loads a version when somebody asks for it, and keeps it.

All requesters of a version share one load, and do not hold up requesters of others.
There is no thread of its own: the first requester drives the load, and sleeps on the
clock while there is nothing to do. (TensorFlow Serving: core/caching_manager.h.)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from managers.loading.load_admission import ResourceTracker
from managers.loading.version_executor import VersionExecutor
from managers.serving_map import Handle, ServingMap
from managers.steps.driver import Driver
from managers.versions.version import LoaderData, RetryOptions, Version
from managers.versions.version_table import VersionTable
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ServingError,
    serving_error,
)
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.loader import Loader
from tfs.core.process_memory import MemoryReleaser
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import Choice, ServableRequest
from tfs.core.servable_state import ServableState
from tfs.core.source import ServableData


class LoaderFactory(Protocol):
    """Makes loaders for versions that no source has aspired. Thread-safe.

    Implementors promise that the methods are quick and load nothing.
    """

    def make(self, servable_id: ServableId) -> LoaderData:
        """Returns the version's loader, or an error item if there is none."""
        ...

    def latest_version(self, name: str) -> int:
        """Returns the version that a request without a version means.

        Raises:
            NotFound: There is no such servable.

        """
        ...

    def earliest_version(self, name: str) -> int:
        """Returns the version that a request for the earliest one means.

        Raises:
            NotFound: There is no such servable.

        """
        ...


class PathPrefixLoaderFactory:
    """Finds servable ``name`` at ``prefix/name``; each has the one version 0.

    Thread-safe if ``make_loader`` is.
    """

    def __init__(
        self, prefix: str, make_loader: Callable[[ServableId, str], Loader[object]]
    ) -> None:
        self._prefix = prefix.rstrip("/")
        self._make_loader = make_loader

    def make(self, servable_id: ServableId) -> LoaderData:
        """Returns a loader for version 0, an error for any other."""
        if servable_id.version != 0:
            return ServableData(
                servable_id,
                None,
                FailedPrecondition(
                    f"only version 0 is served from {self._prefix}, not {servable_id}"
                ),
            )
        path = f"{self._prefix}/{servable_id.name}"
        return ServableData(servable_id, self._make_loader(servable_id, path))

    def latest_version(self, name: str) -> int:
        """Returns 0."""
        return 0

    def earliest_version(self, name: str) -> int:
        """Returns 0."""
        return 0


ON_DEMAND_RETRY: Final = RetryOptions(max_num_retries=2, interval_s=0.1)
"""Retries bridge a short failure. The requester is told of a longer one within a
second.

A requester waits for each load, and the next request tries anew. With pauses as long as
those of a server's background loads, the first requester would wait for half a minute
in vain.
"""


@dataclass(slots=True)
class _Load:
    """A load that requesters wait for.

    Attributes:
        has_begun: Whether the attributes below are final.
        version: What is loaded; None if somebody else has loaded it.
        error: Why it cannot even begin.

    """

    has_begun: bool = False
    version: Version | None = None
    error: ServingError | None = None
    _has_ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it was seen to have ended; stays so when the version is unloaded."""
        version = self.version
        if self.has_begun and (version is None or version.is_settled):
            self._has_ended = True
        return self._has_ended

    @property
    def outcome(self) -> ServingError | None:
        return self.version.error if self.version is not None else self.error


class CachingManager:
    """Gives out pins, loading what is not loaded. Thread-safe; ``acquire`` blocks.

    Nothing is unloaded before ``close``. If a load failed, the next request for the
    version tries again. Owns both executors.

    Args:
        factory: Makes the loaders.
        event_bus: Where states are published; None publishes nothing.
        clock: For retries and waits.
        load_executor: Runs loads; None runs them on the requester's thread.
        unload_executor: Runs unloads; None runs them within ``close``.
        tracker: What loads reserve from; None lets every load through.
        retry: When failed loads are tried again, while whoever asked waits.
        releaser: Gives memory back after unloads.

    """

    def __init__(
        self,
        factory: LoaderFactory,
        *,
        event_bus: EventBus[ServableState] | None = None,
        clock: Clock | None = None,
        load_executor: Executor | None = None,
        unload_executor: Executor | None = None,
        tracker: ResourceTracker | None = None,
        retry: RetryOptions = ON_DEMAND_RETRY,
        releaser: MemoryReleaser | None = None,
    ) -> None:
        self._factory = factory
        self._clock = clock or MonotonicClock()
        self._load_executor = load_executor or InlineExecutor()
        self._unload_executor = unload_executor or InlineExecutor()
        self._table = VersionTable(event_bus, self._clock, retry)
        self._executor = VersionExecutor(
            self._table,
            self._load_executor,
            self._unload_executor,
            self._clock,
            tracker=tracker,
            releaser=releaser,
            on_change=lambda _: self._driver.wake(),
        )
        # Its steps run on the threads that wait for a load.
        self._driver = Driver(self._executor.collect, self._clock, "caching")
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._loading: dict[ServableId, _Load] = {}
        self._is_closed = False

    @property
    def serving_map(self) -> ServingMap:
        """What is loaded; looking there loads nothing."""
        return self._executor.serving_map

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns what is loaded, in order."""
        return self.serving_map.list_ids()

    @property
    def num_loading(self) -> int:
        """How many versions requesters wait for."""
        with self._lock:
            self._drop_ended_locked()
            return len(self._loading)

    def acquire(
        self, request: ServableRequest, deadline_s: float | None = None
    ) -> Handle:
        """Pins the requested version, loading it first if need be. Blocks meanwhile.

        Raises:
            NotFound: The factory knows no such servable.
            DeadlineExceeded: It was not loaded by ``deadline_s``. A running attempt
                goes on, and the next requester waits for the same load.
            Cancelled: The manager was closed meanwhile.
            ServingError: The load ended with this error.

        """
        version = request.version
        if version is None:
            choice = request.choice
            try:
                version = (
                    self._factory.earliest_version(request.name)
                    if choice is Choice.EARLIEST
                    else self._factory.latest_version(request.name)
                )
            except Exception as error:
                raise serving_error(
                    error,
                    f"{request.name}: asking for its {choice.value.lower()} version",
                ) from error
        servable_id = ServableId(request.name, version)
        while True:
            try:
                return self.serving_map.acquire_version(request.name, version)
            except NotFound:
                self._load(servable_id, deadline_s)

    def close(self, deadline_s: float | None = None) -> bool:
        """Unloads everything, ends the executors; idempotent.

        Loads are given up, and their requesters get the error of the last attempt, or
        CANCELLED. Returns whether everything was unloaded; versions that are still
        pinned at the deadline stay.
        """
        with self._lock:
            self._is_closed = True
            loading = list(self._loading)
        for servable_id in loading:
            self._executor.cancel_load(servable_id)
        is_loads_over = self._load_executor.close(deadline_s)
        for servable_id in self.list_available_ids():
            with contextlib.suppress(NotFound, FailedPrecondition):  # it goes already
                self._executor.unload(servable_id, reason="the manager is closed")
        is_empty = self._driver.step_until(
            lambda: not self._executor.admission.num_executing, deadline_s
        )
        return self._unload_executor.close(deadline_s) and is_loads_over and is_empty

    def _load(self, servable_id: ServableId, deadline_s: float | None) -> None:
        with self._lock:
            if self._is_closed:
                raise NotFound(
                    f"{servable_id} is not loaded, and the manager is closed"
                )
            self._drop_ended_locked()
            load = self._loading.get(servable_id)
            is_first = load is None
            if load is None:
                load = self._loading[servable_id] = _Load()
        if is_first:
            self._begin(servable_id, load)
        if not self._driver.step_until(lambda: load.is_over, deadline_s):
            status = self._executor.load_status(servable_id)
            error = None if status is None else status.error
            failed = (
                "" if error is None else f"; the last attempt failed: {error.message}"
            )
            raise DeadlineExceeded(
                f"{servable_id} is still loading; try again later{failed}"
            )
        with self._lock:
            self._drop_ended_locked()
        if load.outcome is not None:
            raise load.outcome

    def _drop_ended_locked(self) -> None:
        # Those whose requesters did not wait for the end, too.
        for servable_id in [key for key, load in self._loading.items() if load.is_over]:
            del self._loading[servable_id]

    def _begin(self, servable_id: ServableId, load: _Load) -> None:
        try:
            if not self._is_loaded(servable_id):
                self._forget_failed(servable_id)
                data = self._factory.make(servable_id)
                version = self._table.manage(data, reason="requested")
                if data.error is None:
                    self._executor.load(servable_id)
                load.version = version
        except Exception as error:  # the factory's; waiting requesters must know
            load.error = serving_error(error, f"{servable_id}: making its loader")
        load.has_begun = True
        self._driver.wake()

    def _is_loaded(self, servable_id: ServableId) -> bool:
        try:
            handle = self.serving_map.acquire_version(
                servable_id.name, servable_id.version
            )
        except NotFound:
            return False
        handle.release()
        return True

    def _forget_failed(self, servable_id: ServableId) -> None:
        """Makes room for a new attempt after one that failed.

        Raises:
            FailedPrecondition: It is managed and neither loaded nor over, because it
                unloads.

        """
        if self._table.find(servable_id) is None:
            return
        try:
            self._table.stop_managing(servable_id)
        except FailedPrecondition as error:
            raise FailedPrecondition(
                "Servable requested for load is already being managed, but is not "
                f"loaded: {servable_id}"
            ) from error
