"""The lifecycle's hot and wide paths: look-ups, swaps beside them, a thousand models.

A look-up is what a handler does: `serving_map.acquire(name)`, use, `release()`. The
baseline is the plain way to count references: an integer behind a lock, found in the
same kind of table.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.serving_map import ServingMap, retire
from managers.state_monitor import ServableStateMonitor
from tests.benchmarks.harness import Area, Report, Sample, interleave, main
from tests.benchmarks.many_models import ManyModels, wait_for_all
from tests.benchmarks.row import Goal, Row
from tests.benchmarks.server_process import ServerProcess
from tfs.core.clock import MonotonicClock
from tfs.core.errors import NotFound
from tfs.core.event_bus import EventBus
from tfs.core.executor import ThreadExecutor
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.system.process_settings import freeze_imported
from tfs.testing.fake_loader import FakeLoader, loaders

NUM_NAMES = 100
SWAPS_PER_S = 100.0

ROWS = (
    Row("core/acquire-release/cpu", "us", Goal("value", "<=", 0.35)),
    Row("core/acquire-release/beside-lock", "us", Goal("ratio", "<=", 0.5)),
    Row("core/with-form/cpu", "us", Goal("value", "<=", 0.6)),
    Row("core/longest-lookup/100-swaps-per-s", "ms", Goal("value", "<=", 10.0)),
    Row("core/failed-lookups/100-swaps-per-s", "", Goal("value", "<=", 0)),
    Row("core/fake-models-available/1000", "s", Goal("value", "<=", 2.0)),
    Row("core/fake-models-swapped/1000", "s", Goal("value", "<=", 2.0)),
    # A server with default options; from the start of its process.
    Row("core/tiny-models-available/1000", "s", Goal("value", "<=", 10.0)),
    Row("core/tiny-models-swapped/1000", "s", Goal("value", "<=", 10.0)),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure; the default is for figures, tests take less."""

    num_calls: int = 200_000
    num_rounds: int = 9
    swap_duration_s: float = 10.0
    num_models: int = 1000
    num_tables: int = 900
    num_networks: int = 100


class LockedEntry:
    """The baseline: an integer behind a lock."""

    __slots__ = ("_lock", "num_references", "servable")

    def __init__(self, servable: object) -> None:
        self.servable = servable
        self.num_references = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        with self._lock:
            self.num_references += 1

    def release(self) -> None:
        with self._lock:
            self.num_references -= 1


class LockedMap:
    """Finds entries by name and counts who uses them."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[str, LockedEntry] = {}

    def acquire(self, name: str) -> LockedEntry:
        entry = self.entries[name]
        entry.acquire()
        return entry


def filled_map() -> ServingMap:
    """Returns a map of 100 servables, one version each."""
    serving_map = ServingMap()
    for index in range(NUM_NAMES):
        servable_id = ServableId(f"m{index}", 1)
        serving_map.publish(ServableHandle(servable_id, f"{servable_id.slashed}"))
    return serving_map


def filled_locked_map() -> LockedMap:
    """Returns the same as the baseline keeps it."""
    locked = LockedMap()
    for index in range(NUM_NAMES):
        locked.entries[f"m{index}"] = LockedEntry(f"m{index}/1")
    return locked


def bare(serving_map: ServingMap, num_calls: int) -> None:
    """As handlers do it."""
    for _ in range(num_calls):
        handle = serving_map.acquire("m7")
        handle.release()


def with_form(serving_map: ServingMap, num_calls: int) -> None:
    """As people write it."""
    for _ in range(num_calls):
        with serving_map.acquire("m7"):
            pass


def locked_form(locked: LockedMap, num_calls: int) -> None:
    """The baseline."""
    for _ in range(num_calls):
        entry = locked.acquire("m7")
        entry.release()


def measure_lookups(report: Report, effort: Effort) -> None:
    """CPU time of one acquire and release, three ways, interleaved."""
    serving_map, locked = filled_map(), filled_locked_map()
    with serving_map.acquire("m7") as servable:
        results_ok = servable == "m7/1"
    results_ok &= locked.acquire("m7").servable == "m7/1"
    locked.entries["m7"].release()

    def timed(run: Callable[[], None]) -> Callable[[], Sample]:
        def measure() -> Sample:
            started_s = time.thread_time()
            run()
            elapsed_s = time.thread_time() - started_s
            return {"cpu_us": elapsed_s / effort.num_calls * 1e6}

        return measure

    runs = interleave(
        {
            "bare": timed(lambda: bare(serving_map, effort.num_calls)),
            "locked": timed(lambda: locked_form(locked, effort.num_calls)),
            "with": timed(lambda: with_form(serving_map, effort.num_calls)),
        },
        num_rounds=effort.num_rounds,
    )
    handle = serving_map.acquire("m7")
    results_ok &= handle.num_pins == 1
    handle.release()
    results_ok &= locked.entries["m7"].num_references == 0
    taken = {name: run["cpu_us"] for name, run in runs.items()}
    for row, name in zip(ROWS[:3], ("bare", "bare", "with"), strict=True):
        report.record(row.name, taken[name], taken["locked"], results_ok=results_ok)


@dataclass(slots=True)
class Lookups:
    """What look-ups beside swaps came to."""

    num: int = 0
    num_failed: int = 0
    num_dead: int = 0
    longest_s: float = 0.0


class Model:
    """Something that can be destroyed too early."""

    __slots__ = ("is_alive",)

    def __init__(self) -> None:
        self.is_alive = True


def swap_for(serving_map: ServingMap, stop: threading.Event) -> int:
    """Swaps one servable's version 100 times a second; returns how often."""
    unpinned = threading.Event()
    version = 1
    current = serving_map.acquire("swapped")
    current.release()
    while not stop.wait(1.0 / SWAPS_PER_S):
        version += 1
        fresh = ServableHandle[object](ServableId("swapped", version), Model())
        serving_map.publish(fresh)
        unpinned.clear()
        if not retire(serving_map, current, unpinned.set):
            while current.num_pins:  # as a manager does: woken, or looking again
                unpinned.wait(0.001)
        model = current.servable
        assert isinstance(model, Model)
        model.is_alive = False
        current.drop()
        current = fresh
    return version - 1


def look_up(duration_s: float, *, has_swaps: bool) -> Lookups:
    """Looks up as fast as it can, while another thread swaps or does not."""
    serving_map = filled_map()
    serving_map.publish(ServableHandle(ServableId("swapped", 1), Model()))
    stop = threading.Event()
    swapper = threading.Thread(target=swap_for, args=(serving_map, stop))
    if has_swaps:
        swapper.start()
    seen = Lookups()
    now_s = time.perf_counter()
    until_s = now_s + duration_s
    while now_s < until_s:
        began_s = now_s
        try:
            handle = serving_map.acquire("swapped")
            model = handle.servable
            seen.num_dead += not (isinstance(model, Model) and model.is_alive)
            handle.release()
        except (NotFound, AttributeError):
            seen.num_failed += 1
        now_s = time.perf_counter()
        seen.num += 1
        seen.longest_s = max(seen.longest_s, now_s - began_s)
    stop.set()
    if has_swaps:
        swapper.join()
    return seen


def measure_swaps(report: Report, effort: Effort) -> None:
    """The longest look-up, and those that failed, while versions change.

    The baseline is the longest without swaps: what the machine does to a busy thread.
    """
    freeze_imported()  # as a server does
    quiet = look_up(effort.swap_duration_s, has_swaps=False)
    seen = look_up(effort.swap_duration_s, has_swaps=True)
    results_ok = seen.num_dead == 0 and seen.num > 0
    report.record(
        ROWS[3].name,
        seen.longest_s * 1e3,
        quiet.longest_s * 1e3,
        results_ok=results_ok,
    )
    report.record(ROWS[4].name, seen.num_failed, results_ok=results_ok)


@dataclass(frozen=True, slots=True)
class Wave:
    """A thousand models come up and change."""

    available_s: float
    swapped_s: float
    is_right: bool


def run_wave(num_models: int) -> Wave:
    """Loads `num_models` fake models, then a second version of each."""
    clock = MonotonicClock()
    bus: EventBus[ServableState] = EventBus(clock)
    monitor = ServableStateMonitor(bus, clock=clock)
    manager = AspiredVersionsManager(
        AspiredVersionsManagerOptions(release_memory=None),
        event_bus=bus,
        clock=clock,
        load_executor=ThreadExecutor(4, "load", clock),
        unload_executor=ThreadExecutor(4, "unload", clock),
    )
    callback = manager.aspired_versions_callback()
    names = [f"model{index}" for index in range(num_models)]
    manager.start()

    def aspire(version: int, goal: ManagerState, awaited: int) -> float:
        started_s = clock.now()
        for name in names:
            callback(loaders(name, FakeLoader(ServableId(name, version))))  # type: ignore[arg-type]
        requests = [ServableRequest.specific(name, awaited) for name in names]
        monitor.wait_until_reached(requests, goal, clock.now() + 60.0)
        return clock.now() - started_s

    try:
        available_s = aspire(1, ManagerState.AVAILABLE, 1)
        is_right = len(manager.list_available_ids()) == num_models
        swapped_s = aspire(2, ManagerState.END, 1)
        is_right &= {i.version for i in manager.list_available_ids()} == {2}
    finally:
        manager.close(clock.now() + 30.0)
    return Wave(available_s, swapped_s, is_right)


def measure_waves(report: Report, effort: Effort) -> None:
    """A thousand versions at once, with loaders that cost nothing."""
    wave = run_wave(effort.num_models)
    report.record(ROWS[5].name, wave.available_s, results_ok=wave.is_right)
    report.record(ROWS[6].name, wave.swapped_s, results_ok=wave.is_right)


def measure_tiny_models(report: Report, effort: Effort) -> None:
    """A thousand real models in a real server, and a new version of each of them."""
    with tempfile.TemporaryDirectory() as name:
        models = ManyModels(Path(name), effort.num_tables, effort.num_networks)
        models.stage(1)
        models.stage(2)
        models.publish(1)
        command = [
            *(sys.executable, "-m", "tfs", "serve"),
            *("--grpc_host=127.0.0.1", "--any_port=true"),
            f"--model_config_file={models.write_config()}",
        ]
        started_s = time.monotonic()
        with ServerProcess(command) as server:
            wait_for_all(server, models.names, 1)
            report.record(ROWS[7].name, time.monotonic() - started_s)
            started_s = time.monotonic()
            models.publish(2)
            wait_for_all(server, models.names, 2)
            wait_for_all(server, models.names, 1, ended=True)
            report.record(ROWS[8].name, time.monotonic() - started_s)


def build_area(effort: Effort) -> Area:
    """Returns the area, measured with that effort."""

    def lookups(report: Report) -> None:
        measure_lookups(report, effort)

    def swaps(report: Report) -> None:
        measure_swaps(report, effort)

    def waves(report: Report) -> None:
        measure_waves(report, effort)

    def tiny_models(report: Report) -> None:
        measure_tiny_models(report, effort)

    return Area("core", ROWS, (lookups, swaps, waves, tiny_models))


if __name__ == "__main__":
    raise SystemExit(main(build_area(Effort())))
