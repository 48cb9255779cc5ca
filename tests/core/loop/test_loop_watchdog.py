"""tfs.core.loop.loop_watchdog: a slow round is caught in the act."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from tfs.core.loop import loop_watchdog
from tfs.core.loop.loop_watchdog import LoopWatchdog, ThreadTimes, ThreadTimesReader
from tfs.core.loop.serving_loop import ServingLoop
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_slow_round_is_reported_with_its_stack(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow round is reported at the limit, and again after ten times as long."""
    loop = ServingLoop(clock, name="slow")
    watchdog = LoopWatchdog(loop, 0.1, times=lambda _: None)

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


class Spent:
    """What the loop's thread spent, as the test says."""

    def __init__(self) -> None:
        self.ran_s = self.queued_s = 5.0

    def __call__(self, native_ident: int) -> ThreadTimes:
        assert native_ident == threading.get_native_id()
        return ThreadTimes(self.ran_s, self.queued_s)


def test_a_round_that_waits_for_a_processor_is_not_called_slow(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine is: the stack waits until the round earns it."""
    loop, spent = ServingLoop(clock), Spent()
    watchdog = LoopWatchdog(loop, 0.1, spent)

    def look_after(queued_s: float, ran_s: float, slept_s: float = 0.0) -> None:
        spent.queued_s += queued_s
        spent.ran_s += ran_s
        clock.advance(queued_s + ran_s + slept_s)
        watchdog.look()

    def is_preempted() -> None:
        look_after(0.0, 0.01)
        look_after(0.09, 0.01)
        for _ in range(3):
            look_after(0.2, 0.01)
        assert "event=slow_round_stack" not in caplog.text
        look_after(0.0, 0.01, slept_s=0.04)
        assert watchdog.num_reports == 1
        assert "took_s=0.790 ran_s=0.050 queued_s=0.690 still_in:" in caplog.text

    loop.post(is_preempted)
    loop.step()
    assert not loop.num_failures
    loop.close()


def test_a_round_that_kept_the_watchdog_waiting_is_judged_from_its_last_look_on(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The times of a round begin at the watchdog's last look, however long ago."""
    loop, spent = ServingLoop(clock), Spent()
    watchdog = LoopWatchdog(loop, 0.1, spent)
    loop.step()
    watchdog.look()

    def computes() -> None:
        spent.ran_s += 0.25
        spent.queued_s += 0.05
        clock.advance(0.3)
        watchdog.look()

    loop.post(computes)
    loop.step()
    assert not loop.num_failures
    assert "took_s=0.300 ran_s=0.250 queued_s=0.050 still_in:" in caplog.text
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
    watchdog = LoopWatchdog(loop, 0.01, times=lambda _: None)
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


@pytest.fixture
def reader() -> Iterator[ThreadTimesReader]:
    reader = ThreadTimesReader()
    yield reader
    reader.close()


def test_the_kernel_counts_what_a_thread_computes(reader: ThreadTimesReader) -> None:
    """A thread's times can be read by its number, from any other thread."""
    ident = threading.get_native_id()
    before = reader.read(ident)
    assert before is not None
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < 0.02:
        pass
    found: list[ThreadTimes | None] = []
    other = threading.Thread(target=lambda: found.append(reader.read(ident)))
    other.start()
    other.join()
    assert found[0] is not None
    assert found[0].since(before).ran_s > 0.01
    assert found[0].since(before).queued_s >= 0.0


def test_of_what_is_no_thread_of_this_process_nothing_is_known(
    reader: ThreadTimesReader,
) -> None:
    """As where the kernel counts nothing; another thread can be asked for afterwards."""
    for _ in range(2):
        assert reader.read(1 << 30) is None
    assert reader.read(threading.get_native_id()) is not None
    reader.close()
    reader.close()
    assert reader.read(threading.get_native_id()) is not None
