"""A table and an executor that a test steps, what is around them, and how loads ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from managers.loading.load_admission import ResourceTracker
from managers.loading.version_executor import VersionExecutor
from managers.versions.harness_state import HarnessState
from managers.versions.version import LoaderData, RetryOptions, Version
from managers.versions.version_table import VersionTable
from tests.managers.environment import Pools, Surroundings
from tfs.core.errors import (
    Code,
    NotFound,
    ServingError,
)
from tfs.core.process_memory import MemoryReleaser
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState
from tfs.core.source import ServableData
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader

THREADS = Pools(2, 2)


class Outcome:
    """How one load or unload ended, or why it did not begin."""

    def __init__(self, world: World, ended: Version | ServingError) -> None:
        self._world = world
        self._ended = ended

    @property
    def is_over(self) -> bool:
        return isinstance(self._ended, ServingError) or self._ended.is_settled

    @property
    def error(self) -> ServingError | None:
        assert self._world.wait_for(lambda: self.is_over)
        ended = self._ended
        return ended if isinstance(ended, ServingError) else ended.error

    @property
    def code(self) -> Code:
        error = self.error
        return Code.OK if error is None else error.code


class World(Surroundings):
    """A table, an executor, and what is around them."""

    def __init__(
        self,
        pools: Pools,
        *,
        limit_bytes: int | None = None,
        retry: RetryOptions | None = None,
        releaser: Callable[[FakeClock], MemoryReleaser] | None = None,
        pre_load_hook: Callable[[ServableId], None] | None = None,
    ) -> None:
        super().__init__(pools)
        self.tracker = None if limit_bytes is None else ResourceTracker.ram(limit_bytes)
        self.table = VersionTable(
            self.bus,
            self.clock,
            retry or RetryOptions(max_num_retries=10, interval_s=0.0),
        )
        self.executor = VersionExecutor(
            self.table,
            *self.executors,
            self.clock,
            tracker=self.tracker,
            releaser=releaser and releaser(self.clock),
            pre_load_hook=pre_load_hook,
            on_change=self._note_change,
        )
        self.serving_map = self.executor.serving_map
        self._changes: deque[str] = deque()
        self._told = threading.Condition()

    def _note_change(self, name: str) -> None:
        self._changes.append(name)
        with self._told:
            self._told.notify_all()

    def manage(self, loader: FakeLoader) -> ServableId:
        self.table.manage(data(loader))
        return loader.id

    def load(self, loader: FakeLoader) -> Outcome:
        """Manages and begins to load; the outcome may come later."""
        return self.begin_load(self.manage(loader))

    def begin_load(self, servable_id: ServableId) -> Outcome:
        return self._begin(self.executor.load, servable_id)

    def begin_unload(self, servable_id: ServableId) -> Outcome:
        return self._begin(self.executor.unload, servable_id)

    def _begin(
        self, begin: Callable[[ServableId], None], servable_id: ServableId
    ) -> Outcome:
        version = self.table.find(servable_id)
        try:
            begin(servable_id)
        except ServingError as refusal:
            return Outcome(self, refusal)
        assert version is not None
        return Outcome(self, version)

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        """Waits until something is so, of which a change is told."""
        with self._told:
            return self._told.wait_for(is_so, 5.0)

    def settle(self) -> float | None:
        """Lets the pools finish and moves on what waited, until nothing does."""
        for _ in range(100):
            self.wait_idle()
            self._changes.clear()
            next_s = self.executor.collect()
            self.wait_idle()
            is_due = next_s is not None and next_s <= self.clock.now()
            if not is_due and not self._changes:
                return next_s
        raise AssertionError("it never settles")

    def state(self, servable_id: ServableId) -> ManagerState | None:
        state = self.monitor.state(servable_id)
        return None if state is None else state.manager_state

    def harness_state(self, servable_id: ServableId) -> HarnessState | None:
        version = self.table.find(servable_id)
        return None if version is None else version.state

    def events(self, servable_id: ServableId) -> list[str]:
        return [
            e.event.manager_state.name
            for e in self.monitor.bounded_log()
            if e.event.id == servable_id
        ]

    def is_found(self, request: ServableRequest) -> bool:
        try:
            self.serving_map.acquire_request(request).release()
        except NotFound:
            return False
        return True

    def close(self) -> None:
        """Unloads what is loaded and ends the pools."""
        self.settle()
        for servable_id in self.serving_map.list_ids():
            self.executor.unload(servable_id)
        self.settle()
        for each in self.executors:
            assert each.close(self.clock.now() + 1.0)
        assert self.log.resident == []


def data(loader: FakeLoader) -> LoaderData:
    return ServableData(loader.id, loader)


S1_1 = ServableId("S1", 1)

S3_1 = ServableId("S3", 1)
