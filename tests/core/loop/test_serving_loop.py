"""The serving loop: order, timers, descriptors, hooks, survival, and no lost wake-up."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.threads import run_together
from tfs.core.clock import MonotonicClock
from tfs.core.loop.pacing import SpinBackoff
from tfs.core.loop.serving_loop import Phase, ServingLoop, Timer
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def loop(clock: FakeClock) -> Iterator[ServingLoop]:
    stepped = ServingLoop(clock)
    yield stepped
    stepped.close()


@pytest.fixture
def threaded() -> Iterator[ServingLoop]:
    running = ServingLoop()
    running.start()
    yield running
    running.close(MonotonicClock.now() + PATIENCE_S)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def fail() -> None:
    raise ValueError("meant to fail")


# -- posting ---------------------------------------------------------------------------


def test_posted_functions_run_in_order(loop: ServingLoop) -> None:
    """What one thread posts runs in the order it was posted."""
    ran: list[int] = []
    for index in range(5):
        loop.post(lambda index=index: ran.append(index))  # type: ignore[misc]
    loop.step()
    assert ran == [0, 1, 2, 3, 4]


def test_what_is_posted_for_a_time_runs_on_the_loop_then(
    loop: ServingLoop, clock: FakeClock
) -> None:
    """Any thread may ask for it; before that time nothing runs."""
    ran: list[str] = []
    when_s = clock.now() + 1
    poster = threading.Thread(
        target=loop.post_at, args=(when_s, lambda: ran.append("due"))
    )
    poster.start()
    poster.join(PATIENCE_S)
    assert loop.step() == when_s
    assert ran == []
    clock.advance(1)
    loop.step()
    assert ran == ["due"]


def test_what_a_posted_function_posts_runs_a_round_later(loop: ServingLoop) -> None:
    """A function that posts itself cannot starve descriptors and timers."""
    ran: list[str] = []

    def again() -> None:
        ran.append("again")
        loop.post(again)

    loop.post(again)
    loop.call_at(loop.clock.now(), lambda: ran.append("timer"))
    due_s = loop.step()
    assert ran == ["again", "timer"]
    assert due_s is not None
    assert due_s <= loop.clock.now()
    loop.step()
    assert ran == ["again", "timer", "again"]


def test_a_burst_costs_one_wake_up(
    loop: ServingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many posts before a round write the eventfd once; so do the next many."""
    writes: list[int] = []
    write = os.eventfd_write

    def counted(fd: int, value: int) -> None:
        writes.append(value)
        write(fd, value)

    monkeypatch.setattr(os, "eventfd_write", counted)
    for burst in (1, 2):
        for _ in range(100):
            loop.post(lambda: None)
        loop.step()
        assert len(writes) == burst


def test_a_round_between_a_post_and_its_wake_up_loses_no_later_one(
    loop: ServingLoop,
) -> None:
    """A post that is drained before it wrote the eventfd leaves the loop wakeable.

    The interleaving: a thread appends, the loop runs the function in a round that
    something else began, the thread writes. The next post must write again.
    """

    class Interleaved(deque[Callable[[], None]]):
        """Lets the loop run a round right after the first append."""

        armed = True

        def append(self, fn: Callable[[], None]) -> None:
            super().append(fn)
            if self.armed:
                self.armed = False
                loop.step()

    ran: list[str] = []
    loop._posted = Interleaved()
    loop.post(lambda: ran.append("first"))
    assert ran == ["first"]
    loop.step()  # woken by the late write, finds nothing to run
    assert not loop._armed
    loop.post(lambda: ran.append("second"))
    assert loop._epoll.poll(0)  # the second post is there to be noticed


def test_posts_from_many_threads_all_run(threaded: ServingLoop) -> None:
    """Nothing is lost and nobody is left asleep, whoever posts."""
    num_threads, num_posts = 8, 2000
    ran: list[tuple[int, int]] = []
    done = threading.Event()

    def note(thread: int, index: int) -> None:
        assert threaded.is_loop_thread
        ran.append((thread, index))
        if len(ran) == num_threads * num_posts:
            done.set()

    def post(thread: int) -> None:
        for index in range(num_posts):
            threaded.post(lambda index=index: note(thread, index))  # type: ignore[misc]

    run_together(*(partial(post, index) for index in range(num_threads)))
    assert done.wait(PATIENCE_S)
    for index in range(num_threads):
        mine = [i for thread, i in ran if thread == index]
        assert mine == list(range(num_posts))
    assert threaded.num_failures == 0


def test_two_threads_in_lock_step_are_always_woken(threaded: ServingLoop) -> None:
    """Ping-pong between a thread and a sleeping loop never stalls."""
    pong = threading.Semaphore(0)
    for _ in range(3000):
        threaded.post(pong.release)
        assert pong.acquire(timeout=PATIENCE_S)


def test_a_closed_loop_runs_nothing(clock: FakeClock) -> None:
    """Posting to a closed loop is harmless, and its descriptor is not reused."""
    loop = ServingLoop(clock)
    loop.close()
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(read_end, False)
        loop.post(fail)
        loop.stop()
        with pytest.raises(BlockingIOError):
            os.read(read_end, 8)
        loop.close()
    finally:
        os.close(read_end)
        os.close(write_end)


# -- timers ----------------------------------------------------------------------------


def test_timers_run_when_the_clock_says_so(loop: ServingLoop, clock: FakeClock) -> None:
    """A timer runs at its time, not before, and once."""
    ran: list[str] = []
    now_s = clock.now()
    loop.call_at(now_s + 2, lambda: ran.append("two"))
    loop.call_at(now_s + 1, lambda: ran.append("one"))
    assert loop.step() == now_s + 1
    clock.advance(1)
    assert loop.step() == now_s + 2
    assert ran == ["one"]
    clock.advance(5)
    assert loop.step() is None
    loop.step()
    assert ran == ["one", "two"]


def test_timers_of_one_time_run_in_the_order_they_were_set(
    loop: ServingLoop, clock: FakeClock
) -> None:
    """Equal times keep the calling order."""
    ran: list[int] = []
    for index in range(10):
        loop.call_at(clock.now(), lambda index=index: ran.append(index))  # type: ignore[misc]
    loop.step()
    assert ran == list(range(10))


def test_a_cancelled_timer_does_not_run(loop: ServingLoop, clock: FakeClock) -> None:
    """Cancelling works any number of times, before and after the time."""
    ran: list[str] = []
    gone = loop.call_at(clock.now() + 1, lambda: ran.append("gone"))
    kept = loop.call_at(clock.now() + 1, lambda: ran.append("kept"))
    gone.cancel()
    gone.cancel()
    clock.advance(1)
    loop.step()
    kept.cancel()
    assert ran == ["kept"]


def test_a_timer_may_cancel_one_that_is_due_with_it(
    loop: ServingLoop, clock: FakeClock
) -> None:
    """Cancelling in the same round still works."""
    ran: list[str] = []
    second: list[Timer] = []
    loop.call_at(clock.now(), lambda: second[0].cancel())
    second.append(loop.call_at(clock.now(), lambda: ran.append("second")))
    loop.step()
    assert ran == []


def test_a_timer_set_by_a_timer_for_now_runs(
    loop: ServingLoop, clock: FakeClock
) -> None:
    """A timer for the present runs in this round or at once after it."""
    ran: list[str] = []

    def outer() -> None:
        loop.call_at(clock.now(), lambda: ran.append("inner"))

    loop.call_at(clock.now(), outer)
    loop.step()
    loop.step()
    assert ran == ["inner"]


def test_cancelled_timers_do_not_pile_up(loop: ServingLoop, clock: FakeClock) -> None:
    """A timer per request, nearly all cancelled, keeps the heap small and right."""
    ran: list[int] = []
    for index in range(20_000):
        timer = loop.call_at(
            clock.now() + 60 + index,
            lambda index=index: ran.append(index),  # type: ignore[misc]
        )
        if index % 1000:
            timer.cancel()
    assert len(loop._timers) < 5000
    clock.advance(30_000)
    loop.step()
    assert ran == list(range(0, 20_000, 1000))


def test_cancelling_from_within_a_timer_may_rebuild_the_heap(
    loop: ServingLoop, clock: FakeClock
) -> None:
    """A mass cancellation while timers run leaves the others to run."""
    ran: list[str] = []
    far = [loop.call_at(clock.now() + 9, fail) for _ in range(5000)]

    def cancel_all() -> None:
        for timer in far:
            timer.cancel()

    loop.call_at(clock.now(), cancel_all)
    loop.call_at(clock.now(), lambda: ran.append("after"))
    loop.step()
    assert ran == ["after"]
    clock.advance(10)
    assert loop.step() is None
    assert loop.num_failures == 0


# -- descriptors -----------------------------------------------------------------------


def test_a_ready_descriptor_calls_back_every_round(
    loop: ServingLoop, pipe: tuple[int, int]
) -> None:
    """Readiness is level-triggered: what is not read is told again."""
    ready: list[int] = []
    loop.watch(pipe[0], ready.append)
    loop.step()
    assert ready == []
    os.write(pipe[1], b"x")
    loop.step()
    loop.step()
    assert len(ready) == 2
    os.read(pipe[0], 1)
    loop.step()
    assert len(ready) == 2


def test_watching_again_replaces_the_callback(
    loop: ServingLoop, pipe: tuple[int, int]
) -> None:
    """One descriptor has one callback, the last one."""
    told: list[str] = []
    loop.watch(pipe[0], lambda _: told.append("old"))
    loop.watch(pipe[0], lambda _: told.append("new"))
    os.write(pipe[1], b"x")
    loop.step()
    assert told == ["new"]


def test_an_unwatched_descriptor_is_silent(
    loop: ServingLoop, pipe: tuple[int, int]
) -> None:
    """Unwatching works twice, and on what was never watched."""
    told: list[int] = []
    loop.watch(pipe[0], told.append)
    os.write(pipe[1], b"x")
    loop.unwatch(pipe[0])
    loop.unwatch(pipe[0])
    loop.unwatch(pipe[1])
    loop.step()
    assert told == []


def test_a_callback_may_unwatch_one_that_is_ready_too(loop: ServingLoop) -> None:
    """A connection closed by an earlier callback of the round is not called."""
    told: list[int] = []
    pipes = [os.pipe() for _ in range(2)]

    def first(fd: int) -> None:
        told.append(fd)
        for read_end, _ in pipes:
            loop.unwatch(read_end)

    try:
        for read_end, write_end in pipes:
            loop.watch(read_end, lambda _, fd=read_end: first(fd))  # type: ignore[misc]
            os.write(write_end, b"x")
        loop.step()
        assert len(told) == 1
    finally:
        for read_end, write_end in pipes:
            os.close(read_end)
            os.close(write_end)


def test_a_descriptor_wakes_a_sleeping_loop(
    threaded: ServingLoop, pipe: tuple[int, int]
) -> None:
    """Data on a watched descriptor ends the loop's sleep."""
    told = threading.Event()

    def ready(_: int) -> None:
        threaded.unwatch(pipe[0])
        told.set()

    threaded.post(lambda: threaded.watch(pipe[0], ready))
    os.write(pipe[1], b"x")
    assert told.wait(PATIENCE_S)


# -- hooks -----------------------------------------------------------------------------


def test_a_loop_that_looks_sees_posts_and_descriptors(threaded: ServingLoop) -> None:
    """What a loop is told to look for, and all else, comes through without its sleep."""
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    rung, posted = threading.Event(), threading.Event()

    def on_ring(_: int) -> None:
        os.eventfd_read(fd)
        rung.set()

    def begin() -> None:
        threaded.watch(fd, on_ring)
        threaded.look_until(MonotonicClock.now() + PATIENCE_S, SpinBackoff())

    threaded.post(begin)
    threaded.post(posted.set)
    assert posted.wait(PATIENCE_S)
    os.eventfd_write(fd, 1)
    assert rung.wait(PATIENCE_S)
    threaded.post(lambda: threaded.unwatch(fd))
    threaded.close(MonotonicClock.now() + PATIENCE_S)
    os.close(fd)


def test_a_look_does_not_delay_a_timer(threaded: ServingLoop) -> None:
    """A loop looks no longer than until the next timer is due."""
    rung = threading.Event()

    def begin() -> None:
        now_s = MonotonicClock.now()
        threaded.call_at(now_s + 0.01, rung.set)
        threaded.look_until(now_s + 10 * PATIENCE_S, SpinBackoff())

    threaded.post(begin)
    assert rung.wait(PATIENCE_S)


def test_a_round_runs_in_its_documented_order(
    loop: ServingLoop, clock: FakeClock, pipe: tuple[int, int]
) -> None:
    """Descriptors, posts, timers, then hooks by phase and in adding order."""
    ran: list[str] = []
    loop.add_round_hook(lambda _: ran.append("flush"), Phase.FLUSH)
    loop.add_round_hook(lambda _: ran.append("schedule 1"), Phase.SCHEDULE)
    loop.add_round_hook(lambda _: ran.append("schedule 2"), Phase.SCHEDULE)
    loop.call_at(clock.now(), lambda: ran.append("timer"))
    loop.post(lambda: ran.append("post"))
    loop.watch(
        pipe[0], lambda _: ran.append("descriptor" if os.read(pipe[0], 1) else "")
    )
    os.write(pipe[1], b"x")
    loop.step()
    assert sorted(ran[:2]) == ["descriptor", "post"]
    assert ran[2:] == ["timer", "schedule 1", "schedule 2", "flush"]


def test_a_round_takes_what_comes_while_it_reads(loop: ServingLoop) -> None:
    """Where several were ready, more that is sent meanwhile is answered with them."""
    ran: list[str] = []
    descriptors = [os.pipe() for _ in range(3)]
    (first, into_first), (second, into_second), (third, into_third) = descriptors

    def read_first(_: int) -> None:
        ran.append("first" if os.read(first, 1) else "")
        os.write(into_third, b"x")

    loop.watch(first, read_first)
    loop.watch(second, lambda _: ran.append("second" if os.read(second, 1) else ""))
    loop.watch(third, lambda _: ran.append("third" if os.read(third, 1) else ""))
    loop.add_round_hook(lambda _: ran.append("hook"), Phase.SCHEDULE)
    os.write(into_first, b"x")
    os.write(into_second, b"x")
    loop.step()
    assert sorted(ran[:2]) == ["first", "second"]
    assert ran[2:] == ["third", "hook"]
    for reading, writing in descriptors:
        loop.unwatch(reading)
        os.close(reading)
        os.close(writing)


def test_the_earliest_wish_decides_when_the_next_round_is_due(
    loop: ServingLoop, clock: FakeClock
) -> None:
    """Timers and hooks together set the alarm."""
    now_s = clock.now()
    loop.call_at(now_s + 5, lambda: None)
    loop.add_round_hook(lambda now: now + 3, Phase.SCHEDULE)
    loop.add_round_hook(lambda _: None, Phase.FLUSH)
    assert loop.step() == now_s + 3
    loop.call_at(now_s + 1, lambda: None)
    assert loop.step() == now_s + 1


def test_a_hook_may_set_a_timer(loop: ServingLoop, clock: FakeClock) -> None:
    """What a hook schedules counts for the round's answer."""
    now_s = clock.now()

    def hook(_: float) -> None:
        loop.call_at(now_s + 2, lambda: None)

    loop.add_round_hook(hook, Phase.SCHEDULE)
    assert loop.step() == now_s + 2


def test_a_removed_hook_does_not_run(loop: ServingLoop) -> None:
    """A hook does not run once it is removed, and may be removed twice."""
    ran: list[str] = []

    def hook(_: float) -> None:
        ran.append("hook")

    loop.add_round_hook(hook, Phase.SCHEDULE)
    loop.remove_round_hook(hook)
    loop.remove_round_hook(hook)
    loop.step()
    assert ran == []


# -- survival and ending ---------------------------------------------------------------


def test_the_loop_survives_whatever_a_callback_raises(
    loop: ServingLoop,
    clock: FakeClock,
    pipe: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Posts, timers, descriptors and hooks fail alone; each failure is counted."""

    def fail_with(_: float) -> None:
        fail()

    ran: list[str] = []
    loop.post(fail)
    loop.post(lambda: ran.append("post"))
    loop.call_at(clock.now(), fail)
    loop.call_at(clock.now(), lambda: ran.append("timer"))

    def fail_reading(_: int) -> None:
        os.read(pipe[0], 1)
        fail()

    loop.watch(pipe[0], fail_reading)
    os.write(pipe[1], b"x")
    loop.add_round_hook(fail_with, Phase.SCHEDULE)
    loop.add_round_hook(lambda _: ran.append("hook"), Phase.FLUSH)
    with caplog.at_level(logging.CRITICAL):
        loop.step()
    assert ran == ["post", "timer", "hook"]
    assert loop.num_failures == 4


def test_stop_ends_a_running_loop_at_once(threaded: ServingLoop) -> None:
    """A sleeping loop is woken to end; closing joins its thread."""
    started = threading.Event()
    threaded.post(started.set)
    assert started.wait(PATIENCE_S)
    threaded.stop()
    threaded.close(MonotonicClock.now() + PATIENCE_S)
    names = [thread.name for thread in threading.enumerate() if thread.is_alive()]
    assert threaded.name not in names


def test_closing_from_the_loop_itself_does_not_wait_for_itself() -> None:
    """A callback may close its loop."""
    loop = ServingLoop(name="closes-itself")
    loop.start()
    closed = threading.Event()

    def close() -> None:
        loop.stop()
        closed.set()

    loop.post(close)
    assert closed.wait(PATIENCE_S)
    loop.close(MonotonicClock.now() + PATIENCE_S)


def test_closing_a_loop_that_hangs_gives_up_at_the_deadline() -> None:
    """A callback that does not return keeps its descriptors; close comes back."""
    loop = ServingLoop(name="hangs")
    loop.start()
    entered, release = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(PATIENCE_S)

    loop.post(hang)
    assert entered.wait(PATIENCE_S)
    loop.close(MonotonicClock.now() + 0.01)
    release.set()
    loop.close(MonotonicClock.now() + PATIENCE_S)
    assert loop._closed


def test_a_loop_that_has_for_ever_to_end_ends() -> None:
    """An operator may give a drain all the time that there is."""
    loop = ServingLoop()
    loop.start()
    loop.close(math.inf)
    loop.close(math.inf)


def test_a_stepped_loop_is_closed_from_another_thread(loop: ServingLoop) -> None:
    """Whoever stepped need not end for the loop to be closed."""
    loop.step()
    thread = threading.Thread(target=loop.close)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_loop_knows_its_thread(threaded: ServingLoop, loop: ServingLoop) -> None:
    """Only functions on the loop's thread are on the loop."""
    answers: list[bool] = []
    done = threading.Event()
    threaded.post(lambda: answers.append(threaded.is_loop_thread))
    threaded.post(done.set)
    assert done.wait(PATIENCE_S)
    assert answers == [True]
    assert not threaded.is_loop_thread
    loop.step()
    assert loop.is_loop_thread
