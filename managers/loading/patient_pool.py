"""A pool whose functions may hang without holding up the others.

A loader that reads from a dead mount, or waits for something that never comes, cannot
be interrupted and keeps its thread. After a while its function is *late*: the pool may
then run one more beside it, so that even a pool of one thread goes on, and the late
function is not counted among those that run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from managers.versions.version import Version
from tfs.core.clock import Clock
from tfs.core.executor import Executor

_MAX_NUM_LATE: Final = 32  # late calls whose threads are replaced by new ones


class _Task:
    """A function that the pool runs, or will run."""

    __slots__ = ("begun_s", "is_late", "submitted_s", "version")

    def __init__(self, version: Version | None, submitted_s: float) -> None:
        self.version = version
        self.submitted_s = submitted_s
        self.begun_s: float | None = None
        self.is_late = False


class PatientPool:
    """Runs functions for versions on an executor, which it does not own. Thread-safe.

    Args:
        executor: Runs the functions.
        clock: Measures how long they take.
        patience_s: How long a function may take before it is late.
        on_late: Called by ``relieve``, once per function that has become late, with its
            version.

    """

    def __init__(
        self,
        executor: Executor,
        clock: Clock,
        patience_s: float,
        on_late: Callable[[Version], None],
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._patience_s = patience_s
        self._on_late = on_late
        # Guards the fields below and the tasks; leaf but for the executor's.
        self._lock = threading.Lock()
        self._tasks: list[_Task] = []
        self._num_late = 0

    @property
    def num_running(self) -> int:
        """Functions that were taken, have not ended and are not late."""
        return len(self._tasks) - self._num_late

    def submit(
        self,
        version: Version | None,
        run: Callable[[], None],
        on_ended: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Has ``run`` called as soon as a thread is free.

        Args:
            version: The version that it is for; None if for none in particular.
            run: What to do.
            on_ended: Called when it has ended and is not counted any more, with
                whether it had been late; on the same thread.

        Raises:
            RuntimeError: The executor is closed; neither will be called.

        """
        task = _Task(version, self._clock.now())

        def run_counted() -> None:
            with self._lock:
                task.begun_s = self._clock.now()
            try:
                run()
            finally:
                self._end(task)
                on_ended(task.is_late)

        with self._lock:
            self._tasks.append(task)
        try:
            self._executor.submit(run_counted)
        except RuntimeError:
            self._end(task)
            raise

    def relieve(self) -> float | None:
        """Lets another function run for each that has become late.

        Returns:
            When, by the clock, to look again; None if nothing runs that is not late
            already.

        """
        late, next_s = self._take_late()
        for version in late:
            self._on_late(version)
        return next_s

    def _take_late(self) -> tuple[list[Version], float | None]:
        late = list[Version]()
        next_s: float | None = None
        with self._lock:
            num_late = self._num_late
            if len(self._tasks) == num_late:
                return late, None
            now_s = self._clock.now()
            for task in self._tasks:
                if task.is_late or self._num_late >= _MAX_NUM_LATE:
                    continue
                begun_s = task.submitted_s if task.begun_s is None else task.begun_s
                due_s = begun_s + self._patience_s
                if task.begun_s is not None and due_s <= now_s:
                    task.is_late = True
                    self._num_late += 1
                    if task.version is not None:
                        late.append(task.version)
                    continue
                # Functions that still wait for a thread are looked at when they may
                # have had one.
                due_s = due_s if due_s > now_s else now_s + self._patience_s
                next_s = due_s if next_s is None else min(next_s, due_s)
            if self._num_late > num_late:
                self._executor.excuse(self._num_late)
        return late, next_s

    def _end(self, task: _Task) -> None:
        with self._lock:
            self._tasks.remove(task)
            if task.is_late:
                self._num_late -= 1
                self._executor.excuse(self._num_late)
