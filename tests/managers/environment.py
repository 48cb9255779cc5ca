"""A manager with everything around it, driven step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.loading.load_admission import ResourceTracker
from managers.state_monitor import ServableStateMonitor, StateMonitorOptions
from managers.transition_policy import resource_preserving
from managers.versions.version import RetryOptions
from tfs.core.clock import Clock
from tfs.core.errors import (
    ServingError,
)
from tfs.core.event_bus import EventBus
from tfs.core.executor import Executor, InlineExecutor, ThreadExecutor
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.source import AspiredVersionsCallback
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader, LoaderLog, loaders

NO_RETRY = RetryOptions(max_num_retries=0)


@dataclass(frozen=True, slots=True)
class Pools:
    """How many threads load and unload; 0 is inline, as in TensorFlow Serving."""

    num_load: int
    num_unload: int

    def __str__(self) -> str:
        return f"load={self.num_load},unload={self.num_unload}"


POOLS = (Pools(0, 0), Pools(2, 0), Pools(0, 2), Pools(4, 4))


def executor(num_threads: int, name: str, clock: Clock) -> Executor:
    if num_threads:
        return ThreadExecutor(num_threads, name, clock)
    return InlineExecutor()


class Surroundings:
    """What is around a manager: pools, a bus, a monitor, a fake clock, a log of loaders."""

    def __init__(self, pools: Pools) -> None:
        self.clock = FakeClock()
        self.log = LoaderLog()
        self.executors = (
            executor(pools.num_load, "load", self.clock),
            executor(pools.num_unload, "unload", self.clock),
        )
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(
            self.bus,
            clock=self.clock,
            options=StateMonitorOptions(max_num_log_events=10_000),
        )

    def loader(self, name: str, version: int, **arguments: object) -> FakeLoader:
        return FakeLoader(
            ServableId(name, version),
            log=self.log,
            **arguments,  # type: ignore[arg-type]
        )

    def wait_idle(self) -> None:
        """Waits until the pools have done what they were given."""
        for each in self.executors:
            if isinstance(each, ThreadExecutor):
                assert each.wait_idle()


class Environment(Surroundings):
    """Owns a manager and what is around it; drives it step by step.

    What a test leaves open, its room's conftest closes.
    """

    made: ClassVar[list[Environment]] = []

    def __init__(
        self,
        pools: Pools,
        *,
        options: AspiredVersionsManagerOptions | None = None,
        tracker: ResourceTracker | None = None,
        has_bus: bool = True,
    ) -> None:
        super().__init__(pools)
        self.made.append(self)
        self.manager = AspiredVersionsManager(
            options
            or AspiredVersionsManagerOptions(
                retry=RetryOptions(max_num_retries=1, interval_s=0.0),
                release_memory=None,
            ),
            event_bus=self.bus if has_bus else None,
            clock=self.clock,
            load_executor=self.executors[0],
            unload_executor=self.executors[1],
            resource_tracker=tracker,
        )
        self._made: dict[str, dict[int, FakeLoader]] = {}
        # A callback for every payload: tests aspire FakeLoaders.
        self._callback: AspiredVersionsCallback[FakeLoader] = (
            self.manager.aspired_versions_callback()  # type: ignore[assignment]
        )

    def aspire(
        self,
        name: str,
        *items: int | FakeLoader | tuple[int, ServingError],
        reason: str = "",
    ) -> None:
        """Aspires exactly these versions; numbers keep their loader if aspired."""
        before = self._made.get(name, {})
        kept = [
            before.get(each, each) if isinstance(each, int) else each for each in items
        ]
        aspired = loaders(name, *kept, log=self.log, reason=reason)
        self._made[name] = {
            data.id.version: data.payload for data in aspired.versions if data.payload
        }
        self._callback(aspired)

    def step(self) -> float | None:
        """Steps once and lets the pools finish what that began."""
        next_s = self.manager.step()
        self.wait_idle()
        return next_s

    def settle(self) -> float | None:
        """Steps until nothing moves by itself; pins and pauses stay."""
        while True:
            next_s = self.step()
            if not self.manager.has_mail:
                return next_s

    def close(self) -> bool:
        """Closes the manager; fails the test if something stays loaded."""
        if self in self.made:
            self.made.remove(self)
        # Fake seconds do not pass: it waits for the pools, not for the deadline.
        return self.manager.close(self.clock.now() + 1.0)

    def state(self, name: str, version: int) -> ManagerState | None:
        state = self.monitor.state(ServableId(name, version))
        return None if state is None else state.manager_state

    def error(self, name: str, version: int) -> ServingError | None:
        state = self.monitor.state(ServableId(name, version))
        return None if state is None else state.error

    def events(self, name: str | None = None) -> list[tuple[str, str]]:
        """Returns what was published: (id, state name)."""
        return [
            (each.event.id.slashed, each.event.manager_state.name)
            for each in self.monitor.bounded_log()
            if name in (None, each.event.id.name)
        ]

    def available(self, name: str) -> Sequence[int]:
        return self.manager.serving_map.versions(name)

    def latest(self, name: str) -> int:
        handle = self.manager.acquire(ServableRequest.latest(name))
        version = handle.id.version
        handle.release()
        return version


def saving(pools: Pools = POOLS[0]) -> Environment:
    """Servable "m" with version 1 available, which is unloaded before others load."""
    env = Environment(pools)
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", 1)
    env.settle()
    return env
