"""The machine's clock beyond what every clock promises."""

from __future__ import annotations

import threading

from tfs.core.clock import MonotonicClock


def test_wait_for_a_deadline_in_the_past_returns() -> None:
    """Nobody sleeps for a time that has come."""
    clock = MonotonicClock()
    condition = threading.Condition()
    with condition:
        clock.wait(condition, clock.now() - 1.0)


def test_deadline_far_away_is_no_overflow() -> None:
    """threading refuses long waits; the clock wakes early instead."""
    clock = MonotonicClock()
    condition = threading.Condition()
    entered = threading.Event()

    def wait() -> None:
        with condition:
            entered.set()
            clock.wait(condition, clock.now() + 1e12)

    thread = threading.Thread(target=wait)
    thread.start()
    assert entered.wait(10.0)
    with condition:
        condition.notify_all()
    thread.join(10.0)
    assert not thread.is_alive()


def test_times_move_on() -> None:
    """Both times are seconds; monotonic time never goes back."""
    clock = MonotonicClock()
    times_s = [clock.now() for _ in range(100)]
    assert times_s == sorted(times_s)
    assert clock.wall_s() > 1.6e9
