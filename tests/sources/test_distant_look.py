"""Looks that another thread takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sources.distant_look import DistantLook
from sources.storage_threads import PATIENCE_S, StorageThreads
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S as WAIT_S


class World:
    """A look at a store that answers when the test lets it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.threads = StorageThreads(self.clock)
        self.taken = threading.Semaphore(0)
        self.look: DistantLook[str] = DistantLook(self.threads, self.taken.release)
        self.has_begun = threading.Event()
        self.answers = threading.Event()

    def begin(self) -> None:
        self.look.begin("store", self._run)

    def wait(self) -> None:
        self.answers.set()
        assert self.taken.acquire(timeout=WAIT_S)

    def _run(self) -> str:
        self.has_begun.set()
        assert self.answers.wait(WAIT_S)
        return "shown"


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.answers.set()
    made.threads.close()


def test_what_a_look_shows_is_fetched_once(world: World) -> None:
    """A look is open until somebody has taken what it showed."""
    assert not world.look.ask()
    assert world.look.fetch() == (None, False)
    world.begin()
    assert world.look.is_open
    world.wait()
    assert world.look.is_open
    assert not world.look.ask()
    assert world.look.fetch() == ("shown", False)
    assert not world.look.is_open
    assert world.look.fetch() == (None, False)


def test_what_is_asked_for_meanwhile_makes_a_look_outdated(world: World) -> None:
    """Nothing is begun twice, and what changed since it began is not forgotten."""
    world.begin()
    assert world.look.ask()
    world.wait()
    assert not world.look.ask()
    assert world.look.fetch() == ("shown", True)
    world.begin()
    world.wait()
    assert world.look.fetch() == ("shown", False)


def test_a_look_that_does_not_come_back_is_late(world: World) -> None:
    """There is hope for as long as a call may take, and none when none goes on."""
    assert world.look.late_s() is None
    world.begin()
    assert world.has_begun.wait(WAIT_S)
    assert world.look.late_s() is None
    world.clock.advance(PATIENCE_S)
    assert world.look.late_s() == PATIENCE_S
    world.wait()
    assert world.look.late_s() is None


def test_no_look_begins_while_the_threads_end(world: World) -> None:
    """Nobody waits for what will never be."""
    world.threads.close()
    world.begin()
    assert not world.look.is_open
