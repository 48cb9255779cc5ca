"""A call is judged by what it did, not by what the machine did meanwhile."""

from __future__ import annotations

import threading

from tfs.runtime.thread_use import ThreadUse, own_s, read_thread_use


def test_time_that_others_took_does_not_count() -> None:
    """A call that never waited took what it computed, however long it was put off."""
    assert own_s(0.5, ThreadUse(1.0, 7), ThreadUse(1.25, 7)) == 0.25


def test_a_call_that_waited_counts_whole() -> None:
    """Sleeping holds up the loop as computing does."""
    assert own_s(0.5, ThreadUse(1.0, 7), ThreadUse(1.25, 8)) == 0.5


def test_no_call_took_longer_than_it_lasted() -> None:
    """CPU clocks are not the wall's: the lesser of both counts."""
    assert own_s(0.5, ThreadUse(1.0, 7), ThreadUse(1.75, 7)) == 0.5


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
