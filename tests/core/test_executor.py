"""The pool of threads beyond what every executor promises."""

from __future__ import annotations

import sys
import threading

import pytest

from tfs.core.executor import InlineExecutor, ThreadExecutor
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S
from tfs.testing.sequencer import Sequencer


def test_no_thread_is_started_before_there_is_work() -> None:
    """An idle pool costs nothing."""
    before = threading.active_count()
    pool = ThreadExecutor(4, "pool")
    assert threading.active_count() == before
    assert (pool.num_threads, pool.num_running) == (4, 0)
    assert pool.close()


def test_at_most_as_many_run_as_there_are_threads() -> None:
    """The rest waits its turn, and counts as running, too."""
    pool = ThreadExecutor(2, "pool")
    sequencer = Sequencer()
    for _ in range(3):
        pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work", 2)
    assert sequencer.num_reached("work") == 2
    assert pool.num_running == 3
    sequencer.open("work")
    assert pool.wait_idle()
    assert sequencer.num_reached("work") == 3
    assert pool.num_running == 0
    assert pool.close()


def test_pool_can_grow_and_shrink() -> None:
    """SetNumLoadThreads ThreadPoolSwapped and FastLoad: from one to many and back."""
    pool = ThreadExecutor(1, "pool")
    sequencer = Sequencer()
    for _ in range(5):
        pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work", 1)
    pool.resize(5)
    sequencer.wait_reached("work", 5)
    pool.resize(1)
    sequencer.open("work")
    assert pool.wait_idle()
    assert pool.num_threads == 1
    ran = threading.Event()
    pool.submit(ran.set)
    assert ran.wait(10.0)
    assert pool.close()


def test_others_run_in_the_place_of_what_takes_too_long() -> None:
    """It is told once, is not counted any more, and gives its place back when it ends."""
    clock = FakeClock()
    pool = ThreadExecutor(1, "pool", clock)
    sequencer, late, ended = Sequencer(), list[str](), list[int]()
    call = pool.submit(
        lambda: sequencer.reach("hang"),
        2.0,
        lambda: late.append("hang"),
        lambda: ended.append(pool.num_running),
    )
    sequencer.wait_reached("hang", 1)
    ran = threading.Event()
    pool.submit(ran.set)
    assert pool.relieve() == clock.now() + 2.0
    assert (late, pool.num_running) == ([], 2)
    clock.advance(2.0)
    for _ in range(2):
        assert pool.relieve() is None
    assert (late, call.is_late) == (["hang"], True)
    assert ran.wait(PATIENCE_S)
    assert pool.num_threads == 1
    sequencer.open("hang")
    assert pool.wait_idle()
    assert ended == [0]
    pool.submit(lambda: sequencer.reach("work"))
    pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work", 1)
    assert sequencer.num_reached("work") == 1
    sequencer.open("work")
    assert pool.close()


def test_what_waits_behind_what_hangs_alone_is_late_too() -> None:
    """There are no threads without end; a queue before what answers is not late."""
    clock = FakeClock()
    pool = ThreadExecutor(4, "pool", clock)
    begun, may_end = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        begun.release()
        assert may_end.wait(PATIENCE_S)

    calls = [pool.submit(hang, 2.0) for _ in range(37)]
    for _ in range(9):  # four more each time
        for _ in range(4):
            assert begun.acquire(timeout=PATIENCE_S)
        assert not calls[-1].is_late
        clock.advance(2.0)
        pool.relieve()
    assert calls[-1].is_late
    assert not begun.acquire(blocking=False)
    may_end.set()
    assert pool.close()


@pytest.mark.parametrize("fault", [ValueError("x"), SystemExit(1)])
def test_function_that_raises_costs_no_thread(fault: BaseException) -> None:
    """Whatever model code raises, the pool goes on."""
    pool = ThreadExecutor(1, "pool")

    def broken() -> None:
        raise fault

    pool.submit(broken)
    ran = threading.Event()
    pool.submit(ran.set)
    assert ran.wait(10.0)
    assert pool.close()


def test_close_waits_for_what_was_submitted_until_its_deadline() -> None:
    """False at the deadline; the work still ends later."""
    clock = FakeClock()
    pool = ThreadExecutor(1, "pool", clock)
    sequencer = Sequencer()
    pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work")
    assert pool.wait_idle(clock.now()) is False
    assert pool.close(clock.now()) is False
    with pytest.raises(RuntimeError):
        pool.submit(lambda: None)
    sequencer.open("work")
    assert pool.close()


def test_idle_pool_keeps_nothing_alive() -> None:
    """Nothing refers any more to a function that has run, nor to what it refers to."""
    pool = ThreadExecutor(1, "pool")
    model = object()
    before = sys.getrefcount(model)
    pool.submit(lambda model=model: None)  # type: ignore[misc]
    assert pool.wait_idle()
    assert sys.getrefcount(model) == before
    assert pool.close()


@pytest.mark.parametrize("num_threads", [0, -1])
def test_pool_needs_a_thread(num_threads: int) -> None:
    """A pool without threads would never run anything."""
    with pytest.raises(ValueError, match="must be positive"):
        ThreadExecutor(num_threads, "pool")
    pool = ThreadExecutor(1, "pool")
    with pytest.raises(ValueError, match="must be positive"):
        pool.resize(num_threads)


def test_inline_executor_runs_on_the_caller() -> None:
    """Zero threads means the caller's, before submit returns."""
    ran: list[threading.Thread] = []
    inline = InlineExecutor()
    inline.submit(lambda: ran.append(threading.current_thread()))
    assert ran == [threading.current_thread()]
    assert (inline.num_threads, inline.num_running) == (1, 0)


def test_a_refused_thread_leaves_the_work_to_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no thread at all the caller gets the error; unbegun work is not counted."""
    pool = ThreadExecutor(2, "pool")
    start, allowed = threading.Thread.start, [0]

    def refuse(thread: threading.Thread) -> None:
        if not allowed[0]:
            raise RuntimeError("can't start new thread")
        allowed[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ran = threading.Semaphore(0)
    with pytest.raises(RuntimeError, match="can't start"):
        pool.submit(ran.release)
    assert pool.num_running == 0
    allowed[0] = 1
    sequencer = Sequencer()
    pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work", 1)
    pool.submit(ran.release)
    sequencer.open("work")
    assert ran.acquire(timeout=10.0)
    assert pool.wait_idle()
    assert pool.close()
