"""Where slow work runs: a bounded pool of named threads, or the caller itself."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tfs.core.clock import Clock, MonotonicClock

log = logging.getLogger(__name__)


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
    def num_free(self) -> int:
        """How many more functions would start at once, without queueing."""
        ...

    def submit(self, fn: Callable[[], object]) -> None:
        """Runs ``fn`` as soon as a thread is free.

        Raises:
            RuntimeError: The executor is closed; ``fn`` will not run.

        """
        ...

    def excuse(self, num: int) -> None:
        """Lets ``num`` more functions run at once, to make up for as many that hang."""
        ...

    def close(self, deadline_s: float | None = None) -> bool:
        """Waits for what was submitted; returns whether it finished by the deadline."""
        ...


class InlineExecutor:
    """Runs each function on the caller's thread, before ``submit`` returns."""

    def __init__(self) -> None:
        self._closed = False

    @property
    def num_threads(self) -> int:
        """One, which is the caller."""
        return 1

    @property
    def num_free(self) -> int:
        """Always one, which is the caller."""
        return 1

    def submit(self, fn: Callable[[], object]) -> None:
        """Runs ``fn`` now."""
        if self._closed:
            raise RuntimeError("executor is closed")
        _run_logged(fn, "inline")

    def excuse(self, num: int) -> None:
        """Does nothing, because a function that hangs holds up its caller."""

    def close(self, deadline_s: float | None = None) -> bool:
        """Refuses later work."""
        self._closed = True
        return True


class ThreadExecutor:
    """At most ``num_threads`` daemon threads, started when first needed.

    Thread-safe. The queue is bounded by its users: a manager submits at most one
    action per servable version. ``resize`` takes effect at once for new work;
    surplus threads end when they next fall idle.
    """

    def __init__(self, num_threads: int, name: str, clock: Clock | None = None) -> None:
        if num_threads < 1:
            raise ValueError(f"{name}: num_threads must be positive: {num_threads}")
        self.name = name
        self._clock = clock or MonotonicClock()
        # Guards every field below; leaf lock: nothing is called under it.
        self._changed = threading.Condition()
        self._limit = num_threads
        self._num_excused = 0
        self._queue: deque[Callable[[], object]] = deque()
        self._num_threads = 0
        self._num_idle = 0
        self._num_started = 0
        self._num_watchers = 0
        self._closed = False

    @property
    def num_threads(self) -> int:
        """How many functions may run at once."""
        return self._limit

    @property
    def num_free(self) -> int:
        """Threads that are idle or not started yet, less what is queued."""
        with self._changed:
            busy = self._num_threads - self._num_idle
            return max(0, self._most_locked() - busy - len(self._queue))

    def resize(self, num_threads: int) -> None:
        """Changes how many functions may run at once."""
        if num_threads < 1:
            raise ValueError(f"{self.name}: num_threads must be positive")
        with self._changed:
            self._limit = num_threads
            self._start_missing_locked()
            self._changed.notify_all()

    def excuse(self, num: int) -> None:
        """Runs ``num`` more at once than ``num_threads`` says; see the protocol."""
        with self._changed:
            self._num_excused = num
            self._start_missing_locked()
            self._changed.notify_all()

    def submit(self, fn: Callable[[], object]) -> None:
        """Queues ``fn``; see :meth:`Executor.submit`."""
        with self._changed:
            if self._closed:
                raise RuntimeError(f"executor {self.name} is closed")
            self._queue.append(fn)
            try:
                self._start_missing_locked()
            except RuntimeError:
                self._queue.pop()
                raise
            if self._num_watchers:
                self._changed.notify_all()
            else:
                self._changed.notify()

    def wait_idle(self, deadline_s: float | None = None) -> bool:
        """Blocks until nothing runs or is queued; returns whether that was reached."""
        with self._changed:
            while self._queue or self._num_threads > self._num_idle:
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
        return self._limit + self._num_excused

    def _start_missing_locked(self) -> None:
        most = self._most_locked()
        wanted = min(most, self._num_threads - self._num_idle + len(self._queue))
        while self._num_threads < wanted:
            self._num_threads += 1
            self._num_idle += 1
            self._num_started += 1
            thread = threading.Thread(
                target=self._work, name=f"{self.name}-{self._num_started}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                self._num_threads -= 1
                self._num_idle -= 1
                if not self._num_threads:
                    raise
                log.warning("event=thread_refused executor=%s", self.name)
                return  # the existing threads will do it later

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._closed or self._num_threads > self._most_locked():
                        self._num_idle -= 1
                        self._num_threads -= 1
                        self._changed.notify_all()
                        return
                    self._changed.wait()
                if self._num_threads - self._num_idle >= self._most_locked():
                    self._num_idle -= 1
                    self._num_threads -= 1
                    self._changed.notify_all()
                    return
                fn = self._queue.popleft()
                self._num_idle -= 1
            try:
                _run_logged(fn, self.name)
            except BaseException:  # SystemExit of model code must not cost a thread
                log.exception("event=executor_function_exited executor=%s", self.name)
            del fn  # a pool thread must not keep a servable alive while idle
            with self._changed:
                self._num_idle += 1
                if self._num_watchers:
                    self._changed.notify_all()


def _run_logged(fn: Callable[[], object], where: str) -> None:
    try:
        fn()
    except Exception:
        log.exception("event=executor_function_failed executor=%s", where)
