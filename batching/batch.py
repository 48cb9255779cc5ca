"""Tasks that are computed together, on their way through a runner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from batching.turn_order import charge
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_task import Task
from tfs.core.batch.queue_stats import EARLY, SAMPLE, SHORT_S
from tfs.core.errors import (
    Code,
    Internal,
    InterpreterDied,
    InvalidArgument,
    ServingError,
    serving_error,
)

log = logging.getLogger(__name__)

TaskT = TypeVar("TaskT", bound=Task)
RunTaskT = TypeVar("RunTaskT", bound=Task)


class FaultyTasks(InvalidArgument):
    """Some tasks of a batch cannot be computed; the others can, but have not been.

    Attributes:
        errors: Why, by index of the task; at least one.

    """

    def __init__(self, errors: Mapping[int, ServingError]) -> None:
        super().__init__(f"{len(errors)} tasks of the batch cannot be computed")
        self.errors = errors


class Batch(Generic[TaskT]):
    """One batch, made by the scheduler. Owned by the runner from ``run`` to ``done``.

    Attributes:
        queue: The scheduler's queue that it came from.
        tasks: The tasks in order of arrival, high priority first. ``done`` calls their
            ``on_done``; the runner never does.
        num_rows: Rows of all tasks.
        padded_rows: Rows to compute, at least ``num_rows``; the rest is padding.
        oldest_s: When the task of the queue that had waited longest arrived.
        started_s: When it was handed to the runner.
        is_done: Whether ``done`` was called.
        is_retry: Whether it is part of a larger batch that failed.

    """

    __slots__ = (
        "is_done",
        "is_retry",
        "num_rows",
        "oldest_s",
        "padded_rows",
        "queue",
        "started_s",
        "tasks",
    )

    # There is no constructor: a batch may be a single task, and a call with so many
    # arguments would show.
    queue: BatchQueue[TaskT]
    tasks: list[TaskT]
    num_rows: int
    padded_rows: int
    oldest_s: float
    started_s: float
    is_retry: bool
    is_done: bool

    def keep(self, tasks: list[TaskT]) -> None:
        """Leaves out all tasks but these, before they are computed. On any thread.

        Whoever calls it ends the others, by ``queue.end_dead``.
        """
        self.tasks = tasks
        self.num_rows = sum([task.num_rows for task in tasks])
        self.padded_rows = self.queue.padded[self.num_rows]

    def done(self, outcomes: Outcomes) -> None:
        """Ends the batch and its tasks, on the scheduler's thread.

        From here on the device is free, and its next batch starts before these tasks
        are told their outcomes. Calling it twice is an error of the runner.

        Args:
            outcomes: One outcome per task, in order, of which a ServingError fails its
                task alone; or an error of the whole batch, which may then run again in
                halves; or FaultyTasks, after which the others run again; or a function
                that ends each of the tasks exactly once.

        Raises:
            RuntimeError: The batch is done already; nothing changed.

        """
        if self.is_done:
            raise RuntimeError("a batch was done twice")
        self.is_done = True
        queue = self.queue
        scheduler = queue.scheduler
        now_s = scheduler.now()
        tasks = self.tasks
        started_s = self.started_s
        if scheduler.last_done_s > started_s and scheduler.serial:
            started_s = scheduler.last_done_s  # until then it waited for the device
        device_s = now_s - started_s
        scheduler.last_done_s = now_s
        scheduler.num_in_flight -= 1
        queue.num_in_flight -= 1
        rows = self.num_rows
        if device_s < queue.quantum_s:
            queue.credit_s -= device_s
        else:
            self._note_long(device_s)
        num_tasks = len(tasks)
        # This counts in place, because a batch may be a single task, and calls would
        # show.
        counts = queue.rows_counts
        counts[rows] = num_alike = counts[rows] + 1
        padded_rows = self.padded_rows
        if padded_rows != num_tasks:
            queue.stats.note_shape(num_tasks, rows, padded_rows)
        if device_s >= SHORT_S:
            num_meant = 1
        elif num_alike <= SAMPLE:
            num_meant = EARLY[num_alike]
        else:
            num_meant = 0 if num_alike % SAMPLE else SAMPLE
        if num_meant:
            queue.stats.note_times(
                self.started_s - self.oldest_s, device_s, len(queue), num_meant
            )
            if not isinstance(outcomes, ServingError):
                queue.learn(tasks, rows, padded_rows, device_s)
        if isinstance(outcomes, ServingError):
            tasks, outcomes = self._sort_out(outcomes)
        else:
            is_list = outcomes.__class__ is list and len(outcomes) == num_tasks
            if not is_list and not callable(outcomes):
                outcomes = _listed(queue.options.name, outcomes, num_tasks)
            if queue.is_failing:
                queue.is_failing = False
                queue.set_plain()
        if not queue.in_ring:
            scheduler.note(queue, now_s)
        if not scheduler.stepping:
            scheduler.restart(now_s)
        self._end(tasks, outcomes)
        if queue.closing:
            scheduler.drop_if_drained(queue)

    def _end(self, tasks: list[TaskT], outcomes: Sequence[Any] | EndAll) -> None:
        """Ends tasks; a fault of one caller does not harm the others."""
        if callable(outcomes):
            try:
                outcomes(tasks)
            except Exception:
                log.exception("event=on_done_failed queue=%r", self.queue)
            return
        index = 0
        for task in tasks:
            on_done = task.on_done
            try:
                on_done(outcomes[index])
            except Exception:
                log.exception("event=on_done_failed queue=%r", self.queue)
            index += 1  # noqa: SIM113  # zip and enumerate cost as much as five tasks

    def _note_long(self, device_s: float) -> None:
        """Charges a batch that took long; a burst may have begun with it."""
        queue = self.queue
        charge(queue, device_s)
        if queue.note_burst is not None and not self.is_retry:
            wait_s = queue.note_burst(self.tasks, queue.tasks, self.started_s)
            queue.timeout_s = wait_s
            queue.is_greedy = not wait_s

    def _sort_out(
        self, error: ServingError
    ) -> tuple[list[TaskT], Sequence[ServingError]]:
        """Returns which tasks of a failed batch end now, and how; the others run again.

        A batch that fails runs again in halves until each task at fault has failed
        alone, so nobody gets the error of somebody else's task.
        """
        queue, tasks = self.queue, self.tasks
        queue.stats.num_failures += 1
        if isinstance(error, FaultyTasks):
            ends = sorted(error.errors)
            others = [t for index, t in enumerate(tasks) if index not in error.errors]
            if others:
                queue.run_again(others, self.oldest_s)
            queue.stats.num_failed_tasks += len(ends)
            return [tasks[index] for index in ends], [error.errors[i] for i in ends]
        if len(tasks) > 1 and _may_be_one_rows_fault(error):
            if not self.is_retry:
                queue.is_failing = True
            half = len(tasks) // 2
            queue.run_again(tasks[:half], self.oldest_s)
            queue.run_again(tasks[half:], self.oldest_s)
            return [], []
        queue.stats.num_failed_tasks += len(tasks)
        return tasks, [error] * len(tasks)


_ISOLATED = frozenset(
    {
        Code.INVALID_ARGUMENT,
        Code.OUT_OF_RANGE,
        Code.FAILED_PRECONDITION,
        Code.UNKNOWN,
        Code.INTERNAL,
    }
)


def _may_be_one_rows_fault(error: ServingError) -> bool:
    """Whether a batch that failed with this error may succeed without one of its tasks.

    It may not if the batch was never computed (UNAVAILABLE, CANCELLED and the like), or
    if its interpreter died while computing it.
    """
    return not isinstance(error, InterpreterDied) and error.code in _ISOLATED


def _listed(name: str, outcomes: Any, num_tasks: int) -> list[Any]:
    """Returns one outcome for each task: errors, if they cannot be told apart."""
    try:
        listed = list(outcomes)
    except Exception as error:  # a fault of the runner, for which no task may be lost
        return [serving_error(error, f"{name}: outcomes of a batch")] * num_tasks
    if len(listed) == num_tasks:
        return listed
    return [
        Internal(f"{name}: {len(listed)} outcomes for {num_tasks} tasks")
    ] * num_tasks


EndAll: TypeAlias = Callable[[Sequence[Any]], None]
"""Ends tasks that were computed; quick, and does not raise."""

Outcomes: TypeAlias = Sequence[Any] | ServingError | EndAll
"""The outcome of a batch; see :meth:`Batch.done`."""


class Runner(Protocol[RunTaskT]):
    """Computes the batches of one queue.

    Implementors promise:

    1. ``run`` starts and does not block (beyond a computation that is meant to take
       place on this thread), and calls ``batch.done`` exactly once, at once or later,
       on the thread that steps the scheduler;
    2. nothing computes for the batch any more when ``done`` is called;
    3. if ``run`` raises before ``done``, that counts as ``done`` with the error.
    """

    def run(self, batch: Batch[RunTaskT]) -> None:
        """Starts computing ``batch``."""
        ...
