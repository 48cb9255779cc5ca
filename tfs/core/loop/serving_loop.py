"""The serving loop: one thread that owns I/O, timers and the batch queues.

Everything on it is a short function; nothing on it blocks. A round is: run what
other threads posted, run what is ready (sockets, eventfds, pidfds), run the timers
that are due, then the round hooks in rank order: hooks of rank SCHEDULE see all
the work a round brought at once (natural batching), hooks of rank FLUSH see all
the answers (one write per connection). Then the loop sleeps in epoll until the next
file descriptor, post, timer or wake-up a hook asked for.

The same class drives the express transport, the grpcio transport and library use;
under a fake clock a test calls :meth:`step` instead of :meth:`run`.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
import itertools
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Protocol

from tfs.core.clock import Clock, MonotonicClock, join_by
from tfs.core.loop.pacing import SpinBackoff
from tfs.core.system.thread_priority import answer_soon

log = logging.getLogger(__name__)

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HANG_UP = select.EPOLLHUP | select.EPOLLERR

_MAX_EVENTS = 256
_LONGEST_SLEEP_S = 3600.0
_COMPACT_AT = 1024  # cancelled timers kept before the heap is rebuilt


class Phase(enum.IntEnum):
    """When in a round a hook runs, lowest first."""

    HAND_OVER = 0
    SCHEDULE = 1
    FLUSH = 2


class Timer:
    """A function to run at a time; cancel it any number of times. Loop-confined."""

    __slots__ = ("_loop", "fn", "when_s")

    def __init__(
        self, loop: ServingLoop, when_s: float, fn: Callable[[], None]
    ) -> None:
        self._loop = loop
        self.when_s = when_s
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        """Makes sure the function does not run (any more)."""
        if self.fn is not None:
            self.fn = None
            self._loop.note_cancelled_timer()


class LoopEntry(Protocol):
    """The way onto the serving loop. Thread-safe; never blocks.

    Implementors promise: functions run one at a time, on the loop; those that are posted
    run in posting order. Once the loop is closed they never run.
    """

    def post(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop, soon."""
        ...

    def post_at(self, when_s: float, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop at a time by its clock, or soon if that has passed."""
        ...


RoundHook = Callable[[float], "float | None"]
"""Takes the time now; returns when it wants the next round at the latest."""


class ServingLoop:
    """Runs callbacks on one thread. Loop-confined, except ``post``, ``post_at`` and ``stop``.

    An exception in a callback is logged and counted; the loop survives it.

    Attributes:
        num_failures: Callbacks that raised since the start.
        thread_ident: The thread the loop runs on; 0 before it runs. For code that asks
            on every task, where :attr:`is_loop_thread` would be a call too many.
        native_ident: The system's number of the same thread.
        owns_thread: Whether its thread runs nothing else, from beginning to end, so that
            what is set for that thread once stays set.
        busy_since_s: When the round that runs now began; None between rounds. For
            watching the loop from another thread.

    """

    def __init__(self, clock: Clock | None = None, name: str = "serving-loop") -> None:
        self.name = name
        self.num_failures = 0
        self._look_until_s = 0.0
        self._look_backoff = SpinBackoff()  # that of the caller who wanted the look
        self.busy_since_s: float | None = None
        self._clock = clock or MonotonicClock()
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, READABLE)
        self._watched: dict[int, Callable[[int], None]] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._armed = False  # whether an eventfd write is on its way
        self._timers: list[tuple[float, int, Timer]] = []
        self._num_cancelled = 0
        self._sequence = itertools.count()
        self._hooks: list[tuple[Phase, RoundHook]] = []
        self._stopping = False
        self._closed = False
        self._running = False
        self._thread: threading.Thread | None = None
        self.owns_thread = False
        self.thread_ident = 0
        self.native_ident = 0

    # -- from any thread -----------------------------------------------------

    def post(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop in its next round, in posting order. Thread-safe.

        A burst costs one eventfd write. After ``close`` the function never runs.
        """
        self._posted.append(fn)
        if not self._armed:
            self._armed = True
            self._wake()

    def post_at(self, when_s: float, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop once the clock reaches ``when_s``. Thread-safe."""

        def arm() -> None:
            self.call_at(when_s, fn)

        self.post(arm)

    def stop(self) -> None:
        """Makes ``run`` return after the current round. Thread-safe, idempotent."""
        self._stopping = True
        self._wake()

    @property
    def clock(self) -> Clock:
        """The clock that timers go by."""
        return self._clock

    @property
    def is_loop_thread(self) -> bool:
        """Whether the caller runs on the loop."""
        return get_ident() == self.thread_ident

    # -- on the loop (or before it runs) --------------------------------------

    def call_at(self, when_s: float, fn: Callable[[], None]) -> Timer:
        """Runs ``fn`` once the clock reaches ``when_s``; equal times in call order."""
        timer = Timer(self, when_s, fn)
        heapq.heappush(self._timers, (when_s, next(self._sequence), timer))
        return timer

    def watch(self, fd: int, fn: Callable[[int], None], events: int = READABLE) -> None:
        """Calls ``fn(ready_events)`` in every round in which ``fd`` is ready.

        Level-triggered, and looked at twice in a round that found several ready.
        Watching a watched descriptor replaces both arguments.
        """
        if fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._watched[fd] = fn

    def unwatch(self, fd: int) -> None:
        """Stops watching ``fd``; call it before closing ``fd``. Idempotent."""
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # the descriptor was closed too early
                self._epoll.unregister(fd)

    def look_until(self, when_s: float, backoff: SpinBackoff) -> None:
        """Makes the loop look for work again and again instead of sleeping.

        This is for a caller that expects something within microseconds, because looking
        saves the wake-up.

        Args:
            when_s: When to sleep after all, by the clock; rounds in between do not change
                it. 0 takes an earlier call back.
            backoff: The caller's own; where its looks were in vain the loop sleeps
                nevertheless.

        """
        if not when_s:
            self._look_until_s = 0.0
        elif backoff.may_look():
            self._look_until_s = when_s
            self._look_backoff = backoff

    def add_round_hook(self, hook: RoundHook, phase: Phase) -> None:
        """Runs ``hook`` at the end of every round, by phase, then in adding order."""
        self._hooks.append((phase, hook))
        self._hooks.sort(key=lambda ranked: ranked[0])

    def remove_round_hook(self, hook: RoundHook) -> None:
        """Stops running ``hook``; idempotent."""
        self._hooks = [ranked for ranked in self._hooks if ranked[1] != hook]

    def note_cancelled_timer(self) -> None:
        """Counts a cancelled timer; the heap is rebuilt when they are the majority."""
        self._num_cancelled += 1
        if (
            self._num_cancelled > _COMPACT_AT
            and self._num_cancelled > len(self._timers) // 2
        ):
            self._timers = [item for item in self._timers if item[2].fn is not None]
            heapq.heapify(self._timers)
            self._num_cancelled = 0

    # -- driving ---------------------------------------------------------------

    def start(self) -> None:
        """Runs the loop on a daemon thread of its own."""
        # Set now, because ``close`` must wait for the thread from here on.
        self._running = True
        self.owns_thread = True
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Runs rounds until ``stop``; blocks the calling thread."""
        self._thread = threading.current_thread()
        self.thread_ident = get_ident()
        self.native_ident = threading.get_native_id()
        self._running = True
        answer_soon()
        wake_s: float | None = None
        try:
            while not self._stopping:
                wake_s = self._round(self._timeout_s(wake_s))
        finally:
            self._running = False

    def step(self) -> float | None:
        """Runs one round without blocking, for tests and embedding.

        Returns:
            When (by the clock) the next round is due, None if only a post or a
            descriptor can bring one; a time not after now means "at once".

        """
        if self._thread is None:
            self._thread = threading.current_thread()
            self.thread_ident = get_ident()
            self.native_ident = threading.get_native_id()
        return self._round(0.0)

    def close(self, deadline_s: float | None = None) -> None:
        """Stops, joins the thread and frees the descriptors; idempotent.

        Watched descriptors stay open: they belong to whoever watched them.
        """
        if self._closed:
            return
        self.stop()
        thread = self._thread
        if (
            self._running  # only a loop that runs has a thread to end
            and thread is not None
            and thread is not threading.current_thread()
            and not join_by(thread, deadline_s, self._clock)
        ):
            return  # a callback hangs, so the descriptors must stay valid
        self._closed = True
        self._epoll.close()

    def __del__(self) -> None:
        # Not in close(): another thread may be in the middle of a post, and would
        # write into whatever file had got the number meanwhile.
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._wake_fd)

    def _wake(self) -> None:
        if not self._closed:
            with contextlib.suppress(OSError):  # a full eventfd is readable already
                os.eventfd_write(self._wake_fd, 1)

    def _timeout_s(self, wake_s: float | None) -> float:
        if self._posted:
            return 0.0
        if wake_s is None:
            return _LONGEST_SLEEP_S
        timeout_s = wake_s - self._clock.now()
        if timeout_s <= 0.0:
            return 0.0
        return timeout_s if timeout_s < _LONGEST_SLEEP_S else _LONGEST_SLEEP_S

    def _round(self, timeout_s: float) -> float | None:
        try:
            if self._look_until_s and timeout_s:
                ready = self._look(timeout_s)
            else:
                ready = self._epoll.poll(timeout_s, _MAX_EVENTS)
        except InterruptedError:
            ready = []
        now = self._clock.now
        begun_s = self.busy_since_s = now()
        self._run_ready(ready)
        if len(ready) > 1:
            # More has come while these were read, and is answered together with them.
            self._run_ready(self._epoll.poll(0.0, _MAX_EVENTS))
        if self._posted:
            self._run_posted()
        if self._timers and self._timers[0][0] <= begun_s:
            self._run_timers(begun_s)
        wake_s = self._timers[0][0] if self._timers else None
        if self._hooks:
            now_s = now()
            for _, hook in self._hooks:
                try:
                    wanted_s = hook(now_s)
                except Exception as error:
                    self._failed(hook, error)
                    continue
                if wanted_s is not None and (wake_s is None or wanted_s < wake_s):
                    wake_s = wanted_s
            if self._timers and (wake_s is None or self._timers[0][0] < wake_s):
                wake_s = self._timers[0][0]
        self.busy_since_s = None
        return now() if self._posted else wake_s

    def _run_ready(self, ready: list[tuple[int, int]]) -> None:
        for fd, events in ready:
            if fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
                # This is done even if there is nothing to run, because a round may come
                # between a post and its write. If it stayed armed, the next post would
                # wake nobody.
                self._armed = False
                continue
            fn = self._watched.get(fd)  # an earlier callback may have unwatched it
            if fn is not None:
                try:
                    fn(events)
                except Exception as error:
                    self._failed(fn, error)

    def _look(self, timeout_s: float) -> list[tuple[int, int]]:
        """Looks until something is ready or due; sleeps once it is not expected now.

        Returns:
            What is ready, as ``epoll.poll`` tells it; nothing if a timer is due.

        """
        now, poll = self._clock.now, self._epoll.poll
        now_s = now()
        end_s = now_s + timeout_s
        until_s = min(self._look_until_s, end_s)
        while now_s < until_s:
            ready = poll(0.0, _MAX_EVENTS)
            if ready:
                self._look_backoff.note(found=True)
                return ready
            now_s = now()
        self._look_until_s = 0.0
        self._look_backoff.note(found=False)
        return poll(max(0.0, end_s - now_s), _MAX_EVENTS)

    def _run_posted(self) -> None:
        # Disarmed before draining: a post that races in either is drained now or
        # writes the eventfd again. Only what was there is run, so that a function
        # that posts itself cannot starve the descriptors.
        self._armed = False
        posted = self._posted
        for _ in range(len(posted)):
            fn = posted.popleft()
            try:
                fn()
            except Exception as error:
                self._failed(fn, error)
        if posted:
            self._armed = True

    def _run_timers(self, now_s: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            timer = heapq.heappop(timers)[2]
            fn = timer.fn
            if fn is None:
                self._num_cancelled -= 1
                continue
            timer.fn = None
            try:
                fn()
            except Exception as error:
                self._failed(fn, error)
            timers = self._timers  # cancelling may have rebuilt the heap

    def _failed(self, fn: object, error: Exception) -> None:
        self.num_failures += 1
        log.error(
            "event=loop_callback_failed loop=%s callback=%r",
            self.name,
            fn,
            exc_info=error,
        )
