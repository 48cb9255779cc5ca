"""tfs.core.loop_watchdog: a slow round is caught in the act."""

from __future__ import annotations

import logging
import threading

import pytest

from tfs.core import loop_watchdog
from tfs.core.loop_watchdog import LoopWatchdog
from tfs.core.serving_loop import ServingLoop
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_slow_round_is_reported_with_its_stack(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """While it runs: once at the limit, again after ten times as long."""
    loop = ServingLoop(clock, name="slow")
    watchdog = LoopWatchdog(loop, 0.1)

    def what_takes_so_long() -> None:
        for advance_s, num_reports in ((0.05, 0), (0.06, 1), (0.5, 1), (0.6, 2)):
            clock.advance(advance_s)
            watchdog.look()
            assert watchdog.num_reports == num_reports

    loop.post(what_takes_so_long)
    loop.step()
    assert loop.num_failures == 0
    assert caplog.text.count("event=slow_round_stack loop=slow") == 2
    assert "what_takes_so_long" in caplog.text
    loop.close()


def test_between_rounds_nothing_is_reported(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that waits is not slow, and the limit counts anew for each round."""
    loop = ServingLoop(clock)
    watchdog = LoopWatchdog(loop, 0.1)

    def one_look() -> None:
        clock.advance(0.08)
        watchdog.look()

    for _ in range(3):
        loop.post(one_look)
        loop.step()
        clock.advance(10.0)
        watchdog.look()
    assert watchdog.num_reports == 0
    assert loop.num_failures == 0
    loop.close()


def test_the_thread_looks_by_itself_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread reports a round that really blocks; close ends the thread."""
    loop = ServingLoop()
    loop.start()
    watchdog = LoopWatchdog(loop, 0.01)
    watchdog.start()
    go_on, reported = threading.Event(), threading.Event()

    def blocks() -> None:
        go_on.wait(PATIENCE_S)

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reported.set()

    listener = Listener()
    logging.getLogger(loop_watchdog.__name__).addHandler(listener)
    loop.post(blocks)
    assert reported.wait(PATIENCE_S)
    logging.getLogger(loop_watchdog.__name__).removeHandler(listener)
    go_on.set()
    watchdog.close()
    watchdog.close()
    loop.close()
    assert watchdog.num_reports
    assert "go_on.wait" in caplog.text
    assert "loop-watchdog" not in {thread.name for thread in threading.enumerate()}
