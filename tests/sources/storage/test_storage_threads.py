"""Calls that may never come back, and those that must not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sources.storage.file_system import PATIENCE_S, StorageThreads
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S as WAIT_S


class World:
    """Threads, and calls that come back when the test ends."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.threads = StorageThreads(self.clock)
        self.may_end = threading.Event()
        self.begun = threading.Semaphore(0)

    def hold(self, place: str, num: int) -> None:
        """Submits calls that hang."""

        def hang() -> None:
            self.begun.release()
            assert self.may_end.wait(WAIT_S)

        for _ in range(num):
            self.threads.submit(place, hang)

    def runs(self, place: str) -> threading.Event:
        """Submits a call that only says that it ran."""
        ran = threading.Event()
        self.threads.submit(place, ran.set)
        return ran


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.may_end.set()
    made.threads.close()


def test_a_place_that_hangs_holds_up_no_other(world: World) -> None:
    """Every place has threads of its own, from the first moment on."""
    world.hold("dead", 10)
    assert world.runs("well").wait(WAIT_S)


def test_what_waits_behind_late_calls_of_its_place_gets_a_thread(world: World) -> None:
    """A call gets a thread once the calls before it are late, and not earlier."""
    world.hold("store", 4)
    for _ in range(4):
        assert world.begun.acquire(timeout=WAIT_S)
    ran = world.runs("store")
    assert world.threads.relieve() == world.clock.now() + PATIENCE_S
    assert not ran.is_set()
    world.clock.advance(PATIENCE_S)
    world.threads.relieve()
    assert ran.wait(WAIT_S)


def test_closed_threads_take_nothing_and_wait_for_nothing(world: World) -> None:
    """A server ends though a store hangs."""
    world.hold("dead", 10)
    world.threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        world.threads.submit("well", lambda: None)
