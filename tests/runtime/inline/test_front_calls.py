"""A call is judged by what it did, not by what the machine did meanwhile."""

from __future__ import annotations

import threading

from tfs.runtime.inline.front_calls import SlowCalls, ThreadUse, read_thread_use

START = ThreadUse(1.0, 7)


def test_a_call_that_computes_too_long_is_slow_at_once() -> None:
    """A call's own time is what it computed, and never more than it lasted."""
    assert SlowCalls(0.01).own_s(0, 0.5, START, ThreadUse(1.25, 7)) == 0.25
    assert SlowCalls(0.01).own_s(0, 0.5, START, ThreadUse(1.25, 8)) == 0.25
    assert SlowCalls(0.01).own_s(0, 0.5, START, ThreadUse(1.75, 7)) == 0.5


def test_time_that_others_took_is_never_held_against_a_call() -> None:
    """A call that never waited took what it computed, however often it is put off."""
    calls = SlowCalls(0.01)
    for num_calls in range(5):
        took_s = calls.own_s(num_calls, 0.5, START, ThreadUse(1.0, 7))
        assert took_s == 0.0


def test_one_wait_is_forgiven_and_the_next_is_not() -> None:
    """It may have been for a thread without a core; a model that waits does it again."""
    calls = SlowCalls(0.01)
    lock_waits = ThreadUse(1.0, 7 + 4)  # Each ends within the switch interval, 5 ms.
    assert calls.own_s(5, 0.025, START, lock_waits) == 0.0
    assert calls.own_s(1005, 0.025, START, lock_waits) == 0.025
    assert calls.own_s(2006, 0.025, START, lock_waits) == 0.0


def test_a_long_sleep_is_slow_at_once() -> None:
    """Who waits for Python's lock wakes more often than a call that sleeps."""
    assert SlowCalls(0.01).own_s(0, 0.02, START, ThreadUse(1.0, 8)) == 0.02


def test_a_sleep_is_seen_as_a_wait() -> None:
    """The kernel counts it as given up of one's own accord."""
    before = ThreadUse.of(read_thread_use())
    threading.Event().wait(0.001)
    assert ThreadUse.of(read_thread_use()).num_waits > before.num_waits


def test_computing_is_seen_as_computing() -> None:
    """A thread's CPU time grows by what it computes."""
    before = ThreadUse.of(read_thread_use())
    while ThreadUse.of(read_thread_use()).cpu_s - before.cpu_s < 0.01:
        pass
