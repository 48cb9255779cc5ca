"""Real threads and random wishes: what is told of versions stays in order, and adds up.

Sources change their minds faster than versions load, with contents that change, fail, come
back or do not fit; requests hold versions on. When everything has come to rest, what can be
requested, what was told and what is reserved agree.
"""

from __future__ import annotations

import random
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
from tfs.core.clock import MonotonicClock
from tfs.core.errors import Internal, InvalidArgument, ServingError, Unavailable
from tfs.core.event_bus import EventBus
from tfs.core.executor import ThreadExecutor
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState as S
from tfs.core.servable_state import ServableState
from tfs.testing.fake_loader import FakeLoader, FakeServable, LoaderLog, loaders
from tfs.testing.patience import PATIENCE_S

NUM_ROUNDS = 4
IMPATIENT_S = 0.01  # what takes longer is late
AVAILABLE_FIRST, RESOURCES_FIRST = "abc", "de"
NAMES = AVAILABLE_FIRST + RESOURCES_FIRST
LIMIT_BYTES = 40

NEXT: dict[S | None, frozenset[S]] = {
    None: frozenset({S.START}),
    S.START: frozenset({S.START, S.LOADING, S.END}),  # START again: with other contents
    S.LOADING: frozenset({S.LOADING, S.AVAILABLE, S.END}),  # LOADING again: it is late
    S.AVAILABLE: frozenset({S.AVAILABLE, S.UNLOADING}),
    S.UNLOADING: frozenset({S.UNLOADING, S.END}),
    S.END: frozenset({S.START}),
}


def _stuck() -> None:
    raise RuntimeError("stuck")


class Lives:
    """A started manager, somebody who asks, and random wishes. Confined to its test."""

    def __init__(self, seed: int, patience_s: float) -> None:
        self.random = random.Random(seed)
        self.log = LoaderLog()
        self.faults: list[str] = []
        self.made: list[FakeLoader] = []
        self.wanted: dict[str, dict[int, FakeLoader | ServingError]] = {}
        clock = MonotonicClock()
        self.clock = clock
        bus: EventBus[ServableState] = EventBus(clock)
        self.monitor = ServableStateMonitor(bus)
        self._told: dict[ServableId, ServableState] = {}
        self._moved = threading.Condition()
        self._never = threading.Event()
        self.monitor.listen(lambda event: self._hear(event.event))
        self.tracker = ResourceTracker.ram(LIMIT_BYTES)
        self.manager = AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                retry=RetryOptions(max_num_retries=2, interval_s=0.005),
                release_memory=None,
                patience_s=patience_s,
            ),
            event_bus=bus,
            load_executor=ThreadExecutor(3, "load", clock),
            unload_executor=ThreadExecutor(2, "unload", clock),
            resource_tracker=self.tracker,
        )
        for name in RESOURCES_FIRST:
            self.manager.set_transition_policy(name, resource_preserving)
        self.manager.start()

    def _hear(self, state: ServableState) -> None:
        before, now = self._told.get(state.id), state.manager_state
        allowed = NEXT[None if before is None else before.manager_state]
        if before is not None and before.is_late:
            allowed |= {S.START}  # other contents, which do not wait for it
        if now not in allowed:
            self.faults.append(f"{state} after {before}")
        self._told[state.id] = state
        with self._moved:
            self._moved.notify_all()

    def change_a_mind(self) -> None:
        """Aspires something else of some servable."""
        name = self.random.choice(NAMES)
        num = self.random.choice((0, 1, 1, 1, 1, 2))
        before = self.wanted.get(name, {})
        wanted: dict[int, FakeLoader | ServingError] = {}
        for version in self.random.sample(range(1, 5), num):
            kept = before.get(version)
            if kept is not None and self.random.random() < 0.6:
                wanted[version] = kept
            elif self.random.random() < 0.05:
                wanted[version] = Internal("no loader could be made")
            else:
                wanted[version] = self._loader(ServableId(name, version))
        self.wanted[name] = wanted
        items = [
            (version, each) if isinstance(each, ServingError) else each
            for version, each in wanted.items()
        ]
        self.manager.aspired_versions_callback()(loaders(name, *items))  # type: ignore[arg-type]

    def _loader(self, servable_id: ServableId) -> FakeLoader:
        kind = self.random.choice(("good",) * 6 + ("flaky", "busy", "corrupt", "stuck"))
        errors: dict[str, list[BaseException | None]] = {
            "flaky": [Unavailable("flaky")],
            "busy": [Unavailable("busy")] * 9,
            "corrupt": [InvalidArgument("corrupt")] * 9,
        }
        estimate_errors = [Unavailable("hiccup")] * (self.random.random() < 0.1)
        takes_long = self._take_long if self.random.random() < 0.1 else None
        then = _stuck if kind == "stuck" else takes_long
        loader: FakeLoader

        def unload() -> None:
            wanted = self.wanted[servable_id.name].get(servable_id.version)
            if wanted is loader and not self.manager.is_closing:
                self.faults.append(f"{servable_id.slashed} was unloaded while aspired")
            if then is not None:
                then()

        loader = FakeLoader(
            servable_id,
            ram_bytes=self.random.choice((1, 3, 6, 20, 60)),
            peak_bytes=2,
            errors=errors.get(kind, ()),
            estimate_errors=estimate_errors,
            log=self.log,
            on_load=self._take_long if self.random.random() < 0.1 else None,
            on_unload=unload,
        )
        self.made.append(loader)
        return loader

    def _take_long(self) -> None:
        self._never.wait(2 * IMPATIENT_S)

    def ask(self, stop: threading.Event) -> None:
        """Requests versions, holding some of them on, until told to stop."""
        chance = random.Random(7)
        held = []
        while not stop.is_set():
            for handle in self.manager.serving_map.acquire_all():
                servable = handle.servable
                if not (isinstance(servable, FakeServable) and servable.is_alive):
                    self.faults.append(f"{handle.id.slashed} was given out destroyed")
                if chance.random() < 0.02:
                    held.append(handle)
                else:
                    handle.release()
            while len(held) > 3 or (held and chance.random() < 0.02):
                handle = held.pop(0)
                if not handle.servable.is_alive:  # type: ignore[attr-defined]
                    self.faults.append(f"{handle.id.slashed} was destroyed while held")
                handle.release()
        for handle in held:
            handle.release()

    def come_to_rest(self) -> None:
        """Waits until nothing moves any more."""
        deadline_s = self.clock.now() + PATIENCE_S
        while not self._is_at_rest():
            assert self.clock.now() < deadline_s, [
                self.manager.snapshots(name) for name in NAMES
            ]
            with self._moved:
                self._moved.wait(0.02)

    def _is_at_rest(self) -> bool:
        manager = self.manager
        pausing = any(v.is_pausing for name in NAMES for v in manager.snapshots(name))
        return manager.is_idle and manager.has_taken_in_all and not pausing

    def check(self) -> None:
        """Compares what is wanted, told, loaded and reserved; all is at rest."""
        for name in NAMES:
            wanted = self.wanted.get(name, {})
            available = set(self.manager.serving_map.versions(name))
            told = {
                state.id.version
                for state in self.monitor.version_states(name)
                if state.manager_state is S.AVAILABLE
            }
            assert available == told, name
            assert wanted or not available, name
            if name in RESOURCES_FIRST:
                assert len(available) <= max(1, len(wanted)), name
        assert self.log.resident == self.manager.list_available_ids()
        assert self.faults == []

    def close(self) -> None:
        """Ends everything; nothing is left of it."""
        assert self.manager.close(self.clock.now() + PATIENCE_S)
        assert self.log.resident == []
        assert self.tracker.used.describe() == "nothing"
        assert self.faults == []
        assert [each.breaches for each in self.made if each.breaches] == []


SEEDS = [
    pytest.param(seed, patience_s, marks=() if seed < 2 else pytest.mark.stress)
    for seed in range(24)
    for patience_s in (PATIENCE_S, IMPATIENT_S)
]


@pytest.mark.parametrize(("seed", "patience_s"), SEEDS)
def test_whatever_is_wanted_the_account_of_it_is_right(
    seed: int, patience_s: float
) -> None:
    """States follow each other as promised, and agree with what is loaded at rest."""
    lives = Lives(seed, patience_s)
    stop = threading.Event()
    asking = threading.Thread(target=lives.ask, args=(stop,))
    asking.start()
    try:
        for _ in range(NUM_ROUNDS):
            for _ in range(lives.random.randrange(1, 60)):
                lives.change_a_mind()
                if lives.random.random() < 0.3:
                    lives.manager.step()  # else several words come at once
            lives.come_to_rest()
            lives.check()
    finally:
        stop.set()
        asking.join(PATIENCE_S)
    lives.close()
