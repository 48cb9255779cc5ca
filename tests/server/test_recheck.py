"""Looks at everything, as often as is good for the loop."""

from __future__ import annotations

from collections.abc import Callable

from tfs.server.recheck import Recheck
from tfs.testing.fake_clock import FakeClock


class World:
    """A loop whose rounds a test runs; a look takes 5 ms."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.posted: list[Callable[[], None]] = []
        self.scheduled: list[tuple[float, Callable[[], None]]] = []
        self.num_looks = 0

    def look(self) -> None:
        self.num_looks += 1
        self.clock.advance(0.005)

    def schedule(self, at_s: float, fn: Callable[[], None]) -> None:
        self.scheduled.append((at_s, fn))

    def turn(self) -> None:
        posted = self.posted[:]
        self.posted.clear()
        for fn in posted:
            fn()


def test_one_look_follows_all_changes_of_a_round() -> None:
    """Who asks again before the look adds nothing; who asks after it does."""
    world = World()
    recheck = Recheck(world.look, world.posted.append, None, world.clock)
    for _ in range(3):
        recheck.ask()
    world.turn()
    assert world.num_looks == 1
    recheck.ask()
    world.turn()
    assert world.num_looks == 2


def test_a_look_that_took_long_is_followed_by_a_rest() -> None:
    """The next one comes when ten times as long has passed, once, and not before."""
    world = World()
    recheck = Recheck(world.look, world.posted.append, world.schedule, world.clock)
    recheck.ask()
    world.turn()
    ended_s = world.clock.now()
    recheck.ask()
    recheck.ask()
    assert world.posted == []
    ((at_s, look),) = world.scheduled
    assert abs(at_s - (ended_s + 0.05)) < 1e-6
    world.clock.advance(0.05)
    look()
    assert world.num_looks == 2
    world.clock.advance(1)
    recheck.ask()
    world.turn()
    assert world.num_looks == 3
