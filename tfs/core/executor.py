"""Where slow work runs: a bounded pool of named threads, or the caller itself."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tfs.core.clock import Clock, MonotonicClock

log = logging.getLogger(__name__)

_MAX_NUM_EXTRA: Final = 32  # threads that take the place of those of late calls


def _nothing() -> None:
    """Stands for a callback that nobody needs."""


@dataclass(slots=True, eq=False)
class Call:
    """A function that was submitted. Its executor writes it; any thread may read it.

    Attributes:
        limit_s: How long the function may take before it is late.
        is_late: Whether it takes longer, or waits for nothing but calls that do.

    """

    fn: Callable[[], object]
    limit_s: float
    on_late: Callable[[], object]
    on_end: Callable[[], object]
    asked_s: float
    begun_s: float | None = None
    is_late: bool = False
    is_over: bool = False


class Executor(Protocol):
    """Runs functions, each exactly once. Thread-safe.

    Implementors promise: ``submit`` never raises for what the function does (an
    exception is logged); functions start in the order submitted; after ``close``
    nothing new is taken.
    """

    @property
    def num_threads(self) -> int:
        """How many functions may run at once."""
        ...

    @property
    def num_running(self) -> int:
        """Functions that were submitted, have not ended and are not late."""
        ...

    def submit(
        self,
        fn: Callable[[], object],
        limit_s: float = math.inf,
        on_late: Callable[[], object] = _nothing,
        on_end: Callable[[], object] = _nothing,
    ) -> Call:
        """Runs ``fn`` as soon as a thread is free.

        Args:
            fn: What to do.
            limit_s: How long it may take. Then it is late, and another function may run
                beside it, because what hangs cannot be interrupted.
            on_late: Called by ``relieve`` when it is late.
            on_end: Called when it has ended and is not counted any more; on its thread.

        Raises:
            RuntimeError: The executor is closed; ``fn`` will not run.

        """
        ...

    def relieve(self) -> float | None:
        """Notes which functions are late, and lets others run in their place.

        Returns:
            When, by the clock, to look again; None if nothing can become late.

        """
        ...

    def close(self, deadline_s: float | None = None) -> bool:
        """Waits for what was submitted; returns whether it finished by the deadline."""
        ...


class InlineExecutor:
    """Runs each function on the caller's thread, before ``submit`` returns."""

    num_threads = 1

    def __init__(self) -> None:
        self._closed = False
        self._lock = threading.Lock()  # guards the count; leaf
        self.num_running = 0

    def submit(
        self,
        fn: Callable[[], object],
        limit_s: float = math.inf,
        on_late: Callable[[], object] = _nothing,
        on_end: Callable[[], object] = _nothing,
    ) -> Call:
        """Runs ``fn`` now."""
        if self._closed:
            raise RuntimeError("executor is closed")
        with self._lock:
            self.num_running += 1
        try:
            _run_logged(fn, "inline")
        finally:
            with self._lock:
                self.num_running -= 1
            on_end()
        return Call(fn, limit_s, on_late, on_end, 0.0)

    def relieve(self) -> None:
        """Does nothing, because a function that hangs holds up its caller."""

    def close(self, deadline_s: float | None = None) -> bool:
        """Refuses later work."""
        self._closed = True
        return True


class ThreadExecutor:
    """At most ``num_threads`` daemon threads, and one more for each late function.

    Thread-safe. Threads are started when first needed. The queue is bounded by its
    users: a manager submits at most one action per servable version. ``resize`` takes
    effect at once for new work; surplus threads end when they next fall idle.
    """

    def __init__(self, num_threads: int, name: str, clock: Clock | None = None) -> None:
        if num_threads < 1:
            raise ValueError(f"{name}: num_threads must be positive: {num_threads}")
        self.name = name
        self._clock = clock or MonotonicClock()
        # Guards every field below, and the calls; leaf: nothing is called under it.
        self._changed = threading.Condition()
        self._limit = num_threads
        self._queue: deque[Call] = deque()
        self._running: list[Call] = []
        self._num_late = 0
        self._num_ending = 0  # functions that have ended, but not their ``on_end``
        self._num_threads = 0
        self._num_started = 0
        self._num_watchers = 0
        self._closed = False

    @property
    def num_threads(self) -> int:
        """How many functions may run at once, besides those that are late."""
        return self._limit

    @property
    def num_running(self) -> int:
        """Functions that were submitted, have not ended and are not late."""
        with self._changed:
            uncounted = self._num_late + self._num_ending
            return len(self._queue) + len(self._running) - uncounted

    def resize(self, num_threads: int) -> None:
        """Changes how many functions may run at once."""
        if num_threads < 1:
            raise ValueError(f"{self.name}: num_threads must be positive")
        with self._changed:
            self._limit = num_threads
            self._start_missing_locked()
            self._changed.notify_all()

    def submit(
        self,
        fn: Callable[[], object],
        limit_s: float = math.inf,
        on_late: Callable[[], object] = _nothing,
        on_end: Callable[[], object] = _nothing,
    ) -> Call:
        """Queues ``fn``; see :meth:`Executor.submit`."""
        with self._changed:
            if self._closed:
                raise RuntimeError(f"executor {self.name} is closed")
            call = Call(fn, limit_s, on_late, on_end, self._clock.now())
            self._queue.append(call)
            try:
                self._start_missing_locked()
            except RuntimeError:
                self._queue.pop()
                raise
            if self._num_watchers:
                self._changed.notify_all()
            else:
                self._changed.notify()
            return call

    def relieve(self) -> float | None:
        """Lets one more function run for each that is late, up to 32 more."""
        late = list[Call]()
        next_s = math.inf
        with self._changed:
            now_s = self._clock.now()
            for call in self._running:
                assert call.begun_s is not None
                due_s = call.begun_s + call.limit_s
                if call.is_late or call.is_over:
                    continue
                if due_s > now_s:
                    next_s = min(next_s, due_s)
                else:
                    call.is_late = True
                    self._num_late += 1
                    late.append(call)
            is_stuck = (
                self._num_late == len(self._running) >= self._limit + _MAX_NUM_EXTRA
            )
            for call in self._queue:
                # They are looked at again when they may have had a thread.
                call.is_late = is_stuck and call.limit_s < math.inf
                next_s = min(next_s, max(call.asked_s, now_s) + call.limit_s)
            if late:
                self._start_missing_locked()
                self._changed.notify_all()
        for call in late:
            call.on_late()
        return None if next_s == math.inf else next_s

    def wait_idle(self, deadline_s: float | None = None) -> bool:
        """Blocks until nothing runs or is queued; returns whether that was reached."""
        with self._changed:
            while self._queue or self._running:
                if deadline_s is not None and self._clock.now() >= deadline_s:
                    return False
                self._num_watchers += 1
                try:
                    self._clock.wait(self._changed, deadline_s)
                finally:
                    self._num_watchers -= 1
        return True

    def close(self, deadline_s: float | None = None) -> bool:
        """Finishes what is queued, ends the threads; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._num_threads:
                now_s = self._clock.now()
                if deadline_s is not None and now_s >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
        return True

    def _most_locked(self) -> int:
        return self._limit + min(self._num_late, _MAX_NUM_EXTRA)

    def _start_missing_locked(self) -> None:
        wanted = min(self._most_locked(), len(self._running) + len(self._queue))
        while self._num_threads < wanted:
            self._num_started += 1
            thread = threading.Thread(
                target=self._work, name=f"{self.name}-{self._num_started}", daemon=True
            )
            self._num_threads += 1
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                self._num_threads -= 1
                if not self._num_threads:
                    raise
                log.warning("event=thread_refused executor=%s", self.name)
                return  # the existing threads will do it later

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                _run_logged(call.fn, self.name)
            except BaseException:  # SystemExit of model code must not cost a thread
                log.exception("event=executor_function_exited executor=%s", self.name)
            call.fn = _nothing  # whoever holds the call must not keep a servable alive
            with self._changed:
                call.is_over = True
                self._num_late -= call.is_late
                self._num_ending += 1
            _run_logged(call.on_end, self.name)
            with self._changed:
                self._running.remove(call)
                self._num_ending -= 1
                del call  # nor must an idle thread
                if self._num_watchers:
                    self._changed.notify_all()

    def _next(self) -> Call | None:
        """Waits for a function to run; returns None if the thread is to end."""
        with self._changed:
            while True:
                if self._num_threads > max(self._most_locked(), len(self._running)) or (
                    self._closed and not self._queue
                ):
                    self._num_threads -= 1
                    self._changed.notify_all()
                    return None
                if self._queue and len(self._running) < self._most_locked():
                    call = self._queue.popleft()
                    call.is_late = False
                    call.begun_s = self._clock.now()
                    self._running.append(call)
                    return call
                self._changed.wait()


def _run_logged(fn: Callable[[], object], where: str) -> None:
    try:
        fn()
    except Exception:
        log.exception("event=executor_function_failed executor=%s", where)
