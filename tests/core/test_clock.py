"""The machine's clock beyond what every clock promises."""

from __future__ import annotations

import math
import threading

import pytest

from tfs.core.clock import MonotonicClock, join_by
from tfs.testing.fake_clock import FakeClock


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


@pytest.mark.parametrize("deadline_s", [None, math.inf, 1e300])
def test_who_has_for_ever_waits_until_the_thread_has_ended(
    deadline_s: float | None,
) -> None:
    """A deadline that no wait can express is no error: it never comes."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    assert join_by(thread, deadline_s, FakeClock())


def test_a_deadline_that_has_passed_ends_the_wait() -> None:
    """Who is late is told that the thread still runs."""
    clock, ending = FakeClock(), threading.Event()
    thread = threading.Thread(target=ending.wait, daemon=True)
    thread.start()
    try:
        assert not join_by(thread, clock.now() - 1, clock)
    finally:
        ending.set()
    assert join_by(thread, None, clock)
