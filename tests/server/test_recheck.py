"""Looks follow changes, and leave the loop time for other work."""

from __future__ import annotations

from tfs.server.recheck import Recheck
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop


class World:
    """A loop whose rounds a test runs; a look takes 5 ms."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.recheck = Recheck(self.look, self.loop, self.clock)
        self.num_looks = 0

    def look(self) -> None:
        self.num_looks += 1
        self.clock.advance(0.005)


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
