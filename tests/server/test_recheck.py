"""Looks follow changes, leave other work time, and the loop alone."""

from __future__ import annotations

from tfs.core.executor import Executor, InlineExecutor
from tfs.server.config.waiting import Recheck
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop
from tfs.testing.held_executor import HeldExecutor


class World:
    """A loop whose rounds a test runs; a look takes 5 ms."""

    def __init__(self, executor: Executor | None = None) -> None:
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.recheck = Recheck(
            self.look,
            self.follow,
            executor or InlineExecutor(),
            self.loop,
            self.clock,
        )
        self.num_looks = 0
        self.num_followed = 0

    def look(self) -> None:
        self.num_looks += 1
        self.clock.advance(0.005)

    def follow(self) -> None:
        self.num_followed += 1


def test_one_look_follows_all_changes_of_a_round() -> None:
    """Asking again before the look adds nothing; asking after it does."""
    world = World()
    for _ in range(3):
        world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 1
    world.clock.advance(1)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 2


def test_a_look_that_took_long_is_followed_by_a_rest() -> None:
    """The next one comes when ten times as long has passed, once, and not before."""
    world = World()
    world.recheck.ask()
    world.loop.run_posted()
    ended_s = world.clock.now()
    world.recheck.ask()
    world.recheck.ask()
    assert world.loop.num_posted == 0
    ((at_s, _),) = world.loop.timers
    assert abs(at_s - (ended_s + 0.05)) < 1e-6
    world.clock.advance(0.0501)
    world.loop.run_due()
    assert world.num_looks == 2
    world.clock.advance(1)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 3


def test_a_look_is_taken_off_the_loop_and_what_follows_on_it() -> None:
    """A look, which may take a second, is off the loop; what follows is on it."""
    executor = HeldExecutor()
    world = World(executor)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 0
    executor.run_held()
    assert (world.num_looks, world.num_followed) == (1, 0)
    world.loop.run_posted()
    assert world.num_followed == 1


def test_what_changes_during_a_look_is_looked_at_after_it() -> None:
    """A change during a look causes another look after it, never one beside it."""
    executor = HeldExecutor()
    world = World(executor)
    world.recheck.ask()
    world.loop.run_posted()
    (begun,) = executor.held
    executor.held.clear()
    world.recheck._is_posted = False  # the look has begun
    world.recheck.ask()
    world.loop.run_posted()
    assert executor.held == []
    begun()
    world.loop.run_posted()
    world.clock.advance(1)
    world.loop.run_due()
    executor.run_held()
    world.loop.run_posted()
    assert world.num_looks == 2
    assert world.num_followed == 2


def test_an_executor_that_ends_takes_no_look() -> None:
    """The server ends then: nobody is left to be told."""
    executor = HeldExecutor()
    executor.close()
    world = World(executor)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 0
