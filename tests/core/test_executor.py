"""The pool of threads beyond what every executor promises."""

from __future__ import annotations

import sys
import threading

import pytest

from tfs.core.executor import InlineExecutor, ThreadExecutor
from tfs.testing.fake_clock import FakeClock
from tfs.testing.sequencer import Sequencer


def test_no_thread_is_started_before_there_is_work() -> None:
    """An idle pool costs nothing."""
    before = threading.active_count()
    pool = ThreadExecutor(4, "pool")
    assert threading.active_count() == before
    assert (pool.num_threads, pool.num_free) == (4, 4)
    assert pool.close()


def test_at_most_as_many_run_as_there_are_threads() -> None:
    """The rest waits its turn, and num_free says how many more would start."""
    pool = ThreadExecutor(2, "pool")
    sequencer = Sequencer()
    for _ in range(3):
        pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work", 2)
    assert sequencer.num_reached("work") == 2
    assert pool.num_free == 0
    sequencer.open("work")
    assert pool.wait_idle()
    assert sequencer.num_reached("work") == 3
    assert pool.num_free == 2
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


def test_what_hangs_may_be_excused() -> None:
    """Another thread takes its place, and ends when the function has returned after all."""
    pool = ThreadExecutor(1, "pool")
    sequencer = Sequencer()
    pool.submit(lambda: sequencer.reach("hang"))
    sequencer.wait_reached("hang", 1)
    ran = threading.Event()
    pool.submit(ran.set)
    pool.excuse(1)
    assert ran.wait(10.0)
    assert pool.num_threads == 1
    sequencer.open("hang")
    assert pool.wait_idle()
    pool.excuse(0)
    pool.submit(lambda: sequencer.reach("work"))
    pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work", 1)
    assert pool.num_free == 0
    assert sequencer.num_reached("work") == 1
    sequencer.open("work")
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
    assert (inline.num_threads, inline.num_free) == (1, 1)


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
    assert pool.num_free == 2
    allowed[0] = 1
    sequencer = Sequencer()
    pool.submit(lambda: sequencer.reach("work"))
    sequencer.wait_reached("work", 1)
    pool.submit(ran.release)
    sequencer.open("work")
    assert ran.acquire(timeout=10.0)
    assert pool.wait_idle()
    assert pool.close()
