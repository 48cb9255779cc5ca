"""tfs.server.placing.model_placer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from managers.aspired_versions_manager import AspiredVersionsManager
from managers.versions.harness_state import HarnessSnapshot, HarnessState
from tfs.core.event_bus import EventBus
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.options import ServerOptions
from tfs.server.placing.model_placer import ModelPlacer
from tfs.testing.fake_clock import FakeClock

ID = ServableId("m", 1)


class Annotated:
    """A manager that only remembers what was noted."""

    num_waiting_loads = 0

    def __init__(self) -> None:
        self.notes: list[tuple[str, int | None]] = []
        self.states: list[HarnessState] = []

    def is_covered(self, servable_id: ServableId) -> bool:
        return False

    def snapshots(self, name: str) -> list[HarnessSnapshot]:
        assert name == ID.name
        return [
            HarnessSnapshot(ID, state, None, True, generation)
            for generation, state in enumerate(self.states)
        ]

    def annotate(
        self,
        servable_id: ServableId,
        *,
        note: str,
        resident_bytes: int | None = None,
        is_loading: bool = False,
    ) -> None:
        self.notes.append((note, resident_bytes))


class Noting:
    """A placer, what reaches its manager, and the states it hears of."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock)
        self.manager = Annotated()
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.placer = ModelPlacer(
            ServerOptions(model_base_path="/m"),
            self.loop,
            cast(AspiredVersionsManager, self.manager),
            self.bus,
        )

    def publish(self, state: ManagerState, note: str = "") -> None:
        """Publishes a state, and has the loop do what follows from it."""
        self.bus.publish(ServableState(ID, state, note=note))
        self.loop.step()


@pytest.fixture
def noting() -> Iterator[Noting]:
    made = Noting()
    yield made
    made.placer.close(0.0)
    made.loop.close()


def test_a_slow_call_replaces_the_note_and_keeps_the_memory(noting: Noting) -> None:
    """What is said of the place changes, what the version holds does not."""
    noting.placer._note_slow(ID, 0.0123)
    assert not noting.manager.notes  # nothing is published while the bus delivers
    noting.loop.step()
    slow = ("left the serving loop: a call took 12.3 ms", None)
    assert noting.manager.notes[-1] == slow


def test_a_version_that_left_the_loop_moves_on_where_nothing_waits_for_it(
    noting: Noting,
) -> None:
    """The version moves once, on a thread of its own, because a load blocks."""
    moved: list[tuple[float, str]] = []
    done = threading.Event()

    def leave(call_s: float) -> None:
        moved.append((call_s, threading.current_thread().name))
        done.set()

    noting.placer._watch_front(ID, leave)
    for _ in range(2):
        noting.placer._note_slow(ID, 0.0123)
    assert done.wait(30.0)
    assert moved == [(0.0123, "move-1")]
    noting.placer._watch_front(ID, leave)
    noting.publish(ManagerState.END)
    noting.placer._note_slow(ID, 0.0123)
    all_moved = threading.Event()
    noting.placer._moves.submit(all_moved.set)
    assert all_moved.wait(30.0)
    assert len(moved) == 1
