"""The loop that tests run by hand does as the seam says."""

from __future__ import annotations

from tfs.core.loop.serving_loop import LoopEntry
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop


def test_posted_functions_run_in_order_when_the_test_says_so() -> None:
    """One that posts another has it run in the same go."""
    loop = FakeLoop(FakeClock())
    entry: LoopEntry = loop
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        entry.post(lambda: ran.append("third"))

    entry.post(first)
    entry.post(lambda: ran.append("second"))
    assert (ran, loop.num_posted) == ([], 2)
    loop.run_posted()
    assert (ran, loop.num_posted) == (["first", "second", "third"], 0)


def test_a_timer_runs_once_when_its_time_has_come() -> None:
    """A timer runs once at its time, not before and not again."""
    clock = FakeClock()
    loop = FakeLoop(clock)
    ran: list[str] = []
    loop.post_at(clock.now() + 1, lambda: ran.append("late"))
    loop.post_at(clock.now(), lambda: ran.append("now"))
    loop.run_due()
    assert (ran, len(loop.timers)) == (["now"], 1)
    clock.advance(1)
    loop.run_due()
    loop.run_due()
    assert (ran, loop.timers) == (["now", "late"], [])
