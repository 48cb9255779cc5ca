"""The n-th call fails, for n = 1, 2, ... until nothing is left to fail.

One story is told each time: two servables come up, swap, go back, change their files
and go, one of them saving memory. After the fault the promises hold, at every event,
and nothing leaks.
"""

from __future__ import annotations

import threading

import pytest

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.loading.load_admission import ResourceTracker
from managers.state_monitor import ServableStateMonitor
from managers.transition_policy import resource_preserving
from managers.versions.version import RetryOptions
from tests.managers.environment import POOLS, Pools, executor
from tfs.core.errors import InvalidArgument, Unavailable
from tfs.core.event_bus import EventBus
from tfs.core.executor import ThreadExecutor
from tfs.core.process_memory import TRIM_INTERVAL_S
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ServableState
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader, FakeServable, LoaderLog, loaders

INLINE_AND_THREADS = (POOLS[0], POOLS[3])


class Countdown:
    """Raises at the n-th call it is asked about. Thread-safe."""

    def __init__(self, failing_call: int, error: BaseException) -> None:
        self._lock = threading.Lock()
        self._failing_call = failing_call
        self._error = error
        self.num_calls = 0

    def call(self) -> None:
        with self._lock:
            self.num_calls += 1
            is_failing = self.num_calls == self._failing_call
        if is_failing:
            raise self._error

    @property
    def has_fired(self) -> bool:
        return self.num_calls >= self._failing_call


class FaultyLoader(FakeLoader):
    """A fake loader each of whose calls may be the one that fails."""

    def __init__(
        self, servable_id: ServableId, countdown: Countdown, log: LoaderLog
    ) -> None:
        super().__init__(servable_id, ram_bytes=10, peak_bytes=5, log=log)
        self._countdown = countdown

    def estimate_resources(self) -> ResourceAllocation:
        self._countdown.call()
        return super().estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        self._countdown.call()
        super().load(servable_id)

    def unload(self) -> None:
        super().unload()
        self._countdown.call()

    @property
    def servable(self) -> FakeServable:
        self._countdown.call()
        return super().servable


class Story:
    """Tells the story, and notes what should never happen."""

    def __init__(self, pools: Pools, on_loader: Countdown) -> None:
        self.log = LoaderLog()
        self.faults: list[str] = []
        self._on_loader = on_loader
        self._made: list[FakeLoader] = []
        self.clock = FakeClock()
        pool_clock = FakeClock()
        self._deadline_s = pool_clock.now() + 1.0
        self._executors = [
            executor(pools.num_load, "load", pool_clock),
            executor(pools.num_unload, "unload", pool_clock),
        ]
        bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(bus)
        self.monitor.listen(lambda event: self._check(event.event))
        self.tracker = ResourceTracker.ram(100)
        self.manager = AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                retry=RetryOptions(max_num_retries=1, interval_s=1.0),
                release_memory=lambda: None,
            ),
            event_bus=bus,
            clock=self.clock,
            load_executor=self._executors[0],
            unload_executor=self._executors[1],
            resource_tracker=self.tracker,
        )
        self._is_covered = False

    def tell(self) -> None:
        self.manager.set_transition_policy("saving", resource_preserving)
        kept: dict[tuple[str, int], FakeLoader] = {}
        for numbers in ((1,), (2,), (1,), (1, 2), (2,)):
            for name in ("steady", "saving"):
                wanted = numbers if name == "steady" else numbers[-1:]
                made = [kept.get((name, n)) or self._make(name, n) for n in wanted]
                kept = {k: v for k, v in kept.items() if k[0] != name}
                kept |= {(name, loader.id.version): loader for loader in made}
                self._aspire(name, made)
            self._settle()
            self._is_covered = bool(self.manager.serving_map.versions("steady"))
        for name in ("steady", "saving"):
            self._aspire(name, [self._make(name, 2)])  # its files changed
        self._settle()
        self._is_covered = False
        for name in ("steady", "saving"):
            self._aspire(name, [])
        self._settle()

    def end(self) -> None:
        """Closes and checks that nothing is left."""
        assert self.manager.close(self._deadline_s)
        assert self.faults == []
        assert self.log.resident == []
        assert self.log.max_num_resident["saving"] <= 1
        assert self.tracker.used.describe() == "nothing"
        assert self.manager.list_available_ids() == []
        for loader in self._made:
            assert loader.breaches == []

    def _make(self, name: str, version: int) -> FakeLoader:
        loader = FaultyLoader(ServableId(name, version), self._on_loader, self.log)
        self._made.append(loader)
        return loader

    def _aspire(self, name: str, made: list[FakeLoader]) -> None:
        self.manager.aspired_versions_callback()(loaders(name, *made))  # type: ignore[arg-type]

    def _settle(self) -> None:
        for _ in range(2 * int(TRIM_INTERVAL_S) + 4):
            while True:
                self.manager.step()
                for each in self._executors:
                    if isinstance(each, ThreadExecutor):
                        each.wait_idle()
                if not self.manager.has_mail:
                    break
            self.clock.advance(1.0)

    def _check(self, state: ServableState) -> None:
        is_available = self.manager.serving_map.versions("steady")
        if self._is_covered and not is_available:
            self.faults.append(f"nothing available at {state}")


@pytest.mark.parametrize(
    "error",
    [InvalidArgument("broken"), Unavailable("busy"), RuntimeError("bug")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("pools", INLINE_AND_THREADS, ids=str)
def test_any_call_of_a_loader_may_fail(pools: Pools, error: BaseException) -> None:
    """One fault costs at most its own version; promises hold and nothing leaks."""
    n = 0
    while True:
        n += 1
        countdown = Countdown(n, error)
        story = Story(pools, countdown)
        story.tell()
        story.end()
        if not countdown.has_fired:
            break
    assert n > 40
