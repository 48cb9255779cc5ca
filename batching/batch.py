"""Tasks that are computed together, on their way through a runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tfs.core.batch.batch_task import Task
from tfs.core.errors import InvalidArgument, ServingError

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
    queue: Any
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

    def done(self, outcomes: Outcomes, device_s: float | None = None) -> None:
        """Ends the batch and its tasks, on the scheduler's thread.

        From here on the device is free, and its next batch starts before these tasks
        are told their outcomes. Calling it twice is an error of the runner.

        Args:
            outcomes: One of four. A sequence has one outcome per task, in order; a
                ServingError in it fails that task alone. An error fails the whole
                batch, which may then be run again in halves. FaultyTasks fail the tasks
                that they name, and the others run again. A function gets the tasks of
                the batch and ends each of them exactly once, in less time than one by
                one.
            device_s: Device time used, if the runner knows better than the clock.

        Raises:
            RuntimeError: The batch is done already; nothing changed.

        """
        raise NotImplementedError


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
