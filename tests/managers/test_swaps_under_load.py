"""Real threads: requests go on while the driver swaps versions beneath them."""

from __future__ import annotations

import threading

import pytest

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.state_monitor import ServableStateMonitor
from tfs.core.clock import MonotonicClock
from tfs.core.errors import ServingError
from tfs.core.event_bus import EventBus
from tfs.core.executor import ThreadExecutor
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ServableState
from tfs.testing.fake_loader import FakeLoader, FakeServable, LoaderLog, loaders
from tfs.testing.patience import PATIENCE_S

NUM_SWAPS = 100


class Swapped:
    """A started manager of one servable, on real threads."""

    def __init__(self) -> None:
        self.clock = MonotonicClock()
        bus: EventBus[ServableState] = EventBus(self.clock)
        self.log = LoaderLog()
        self.made: list[FakeLoader] = []
        self.faults: list[str] = []
        self.manager = AspiredVersionsManager(
            AspiredVersionsManagerOptions(release_memory=None),
            event_bus=bus,
            clock=self.clock,
            load_executor=ThreadExecutor(2, "load", self.clock),
            unload_executor=ThreadExecutor(2, "unload", self.clock),
        )
        self._published = threading.Condition()
        self._monitor = ServableStateMonitor(bus)
        self._monitor.listen(lambda _: self._note())
        self.manager.start()

    def _note(self) -> None:
        with self._published:
            self._published.notify_all()

    def aspire(self, version: int, value: int) -> None:
        loader = FakeLoader(ServableId("a", version), value=value, log=self.log)
        self.made.append(loader)
        self.manager.aspired_versions_callback()(loaders("a", loader))  # type: ignore[arg-type]

    def wait_serving(self, value: int) -> bool:
        with self._published:
            return self._published.wait_for(lambda: self.ask() == value, PATIENCE_S)

    def ask(self) -> object:
        """Returns who answers; a fault is noted."""
        try:
            handle = self.manager.serving_map.acquire("a")
        except ServingError as error:
            self.faults.append(str(error))
            return None
        try:
            servable = handle.servable
            assert isinstance(servable, FakeServable)
            if not servable.is_alive:
                self.faults.append("a destroyed servable was given out")
            return servable.value
        except AttributeError:
            self.faults.append("a dropped servable was given out")
            return None
        finally:
            handle.release()


@pytest.mark.parametrize("is_reload", [False, True], ids=["swap", "reload"])
def test_no_request_fails_while_versions_change(is_reload: bool) -> None:
    """A hundred swaps, or reloads of one version, and not one failed request."""
    swapped = Swapped()
    swapped.aspire(1, 0)
    assert swapped.wait_serving(0)
    swapped.faults.clear()  # before the first version there was nothing to find
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            swapped.ask()

    readers = [threading.Thread(target=ask_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    for value in range(1, NUM_SWAPS + 1):
        swapped.aspire(1 if is_reload else value + 1, value)
        # Every other one is overtaken by the next: the manager may skip it.
        if value % 2 == 0:
            assert swapped.wait_serving(value)
    stop.set()
    for reader in readers:
        reader.join()
    assert swapped.faults == []
    assert swapped.manager.close(swapped.clock.now() + PATIENCE_S)
    assert swapped.log.resident == []
    assert all(not loader.breaches for loader in swapped.made)
    assert swapped.log.count("load") == swapped.log.count("unload")
