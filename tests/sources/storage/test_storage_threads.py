"""Calls that may never come back, and those that must not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from sources.storage import storage_threads
from sources.storage.storage_threads import PATIENCE_S, StorageThreads
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S as WAIT_S


class Held:
    """A call that comes back when the test says so."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.has_ended = threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(WAIT_S)
        self.has_ended.set()


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.threads = StorageThreads(self.clock)
        self.held: list[Held] = []

    def hold(self, place: str, num: int = 1) -> list[Held]:
        """Submits calls that hang."""
        calls = [Held() for _ in range(num)]
        self.held += calls
        for call in calls:
            self.threads.submit(place, call)
        return calls


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for each in made.held:
        each.may_end.set()
    made.threads.close()


def runs(submit: Callable[[Callable[[], object]], object]) -> threading.Event:
    """Submits a call that only says that it ran."""
    ran = threading.Event()
    submit(ran.set)
    return ran


def test_a_place_that_hangs_holds_up_no_other(world: World) -> None:
    """Every place has threads of its own, from the first moment on."""
    world.hold("dead", 10)
    assert runs(lambda fn: world.threads.submit("well", fn)).wait(WAIT_S)


def test_what_waits_behind_late_calls_of_its_place_gets_a_thread(world: World) -> None:
    """A call gets a thread once the calls before it are late, and not earlier."""
    first = world.hold("store", 4)
    for each in first:
        assert each.has_begun.wait(WAIT_S)
    ran = runs(lambda fn: world.threads.submit("store", fn))
    assert world.threads.relieve() == world.clock.now() + PATIENCE_S
    assert not ran.is_set()
    world.clock.advance(PATIENCE_S)
    world.threads.relieve()
    assert ran.wait(WAIT_S)
    assert world.threads.relieve() is None


def test_late_is_what_runs_for_too_long_and_what_waits_for_that_alone(
    world: World,
) -> None:
    """A long queue before a place that answers is not late, however long it waits."""
    num_begun, may_end = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        num_begun.release()
        assert may_end.wait(WAIT_S)

    calls = [world.threads.submit("store", hang) for _ in range(40)]
    first, last = calls[0], calls[-1]
    for _ in range(8):  # four more each time, up to 32: no more threads for one place
        for _ in range(4):
            assert num_begun.acquire(timeout=WAIT_S)
        assert not world.threads.is_late("store", last)
        world.clock.advance(PATIENCE_S)
        assert world.threads.is_late("store", first)
        world.threads.relieve()
    assert world.threads.is_late("store", last)
    assert not num_begun.acquire(blocking=False)
    may_end.set()


def test_a_call_that_comes_back_after_all_is_not_late(world: World) -> None:
    """A call that returns after all is not late, and its place goes on."""
    (held,) = world.hold("store")
    assert held.has_begun.wait(WAIT_S)
    world.clock.advance(PATIENCE_S)
    held.may_end.set()
    assert held.has_ended.wait(WAIT_S)
    assert runs(lambda fn: world.threads.submit("store", fn)).wait(WAIT_S)


def test_a_call_that_raises_stops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one of its place runs, and the log tells of the first."""
    told, is_told = list[tuple[object, ...]](), threading.Event()

    def tell(*words: object) -> None:
        told.append(words)
        is_told.set()

    monkeypatch.setattr(storage_threads.log, "exception", tell)

    def fail() -> None:
        raise OSError("gone")

    world.threads.submit("store", fail)
    assert runs(lambda fn: world.threads.submit("store", fn)).wait(WAIT_S)
    assert is_told.wait(WAIT_S)
    assert told == [("event=storage_call_failed place=%s", "store")]


def test_closed_threads_take_nothing_and_wait_for_nothing(world: World) -> None:
    """A server ends though a store hangs."""
    world.hold("dead", 10)
    world.threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        world.threads.submit("well", lambda: None)
