"""Tasks that are computed together, on their way through a runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tfs.core.batch_task import Task
from tfs.core.errors import InvalidArgument, ServingError

TaskT = TypeVar("TaskT", bound=Task)
RunTaskT = TypeVar("RunTaskT", bound=Task)


class FaultSearch:
    """How many runs may still be spent on finding what made one batch fail.

    Halving finds one bad task among n in 2 log2(n) runs. The budget is twice that, so
    that two can be found, while a model that fails whatever it is given costs only a
    bounded factor.
    """

    __slots__ = ("runs_left",)

    def __init__(self, num_tasks: int) -> None:
        self.runs_left = 4 * num_tasks.bit_length()


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
        tasks: In order: arrival order, high priority first. Their ``on_done`` is
            called by ``done``, never by the runner.
        num_rows: Rows of all tasks.
        padded_rows: Rows to compute, at least ``num_rows``; the rest is padding.
        oldest_s: When the task of the queue that had waited longest arrived.
        started_s: When it was handed to the runner.
        is_done: Whether ``done`` was called.
        search: Set if it is part of a larger batch that failed.

    """

    __slots__ = (
        "is_done",
        "num_rows",
        "oldest_s",
        "padded_rows",
        "queue",
        "search",
        "started_s",
        "tasks",
    )

    # No constructor: a batch may be one task, and a call with these would show.
    queue: Any
    tasks: list[TaskT]
    num_rows: int
    padded_rows: int
    oldest_s: float
    started_s: float
    search: FaultSearch | None
    is_done: bool

    def done(self, outcomes: Outcomes, device_s: float | None = None) -> None:
        """Ends the batch and its tasks, on the scheduler's thread.

        From here on the device is free, and its next batch starts before these tasks
        are told their outcomes. Calling it twice is an error of the runner.

        Args:
            outcomes: One outcome per task, in order, where a ServingError fails that
                task alone. Or one error for the whole batch, which may then be run
                again in halves. Or FaultyTasks: those fail, and the others run again.
                Or a function that gets the tasks of the batch and ends each of them
                exactly once, in less time than one by one.
            device_s: Device time used, if the runner knows better than the clock.

        Raises:
            RuntimeError: The batch is done already; nothing changed.

        """
        raise NotImplementedError


EndAll: TypeAlias = Callable[[Sequence[Any]], None]
"""Ends tasks that were computed; quick, does not raise."""

Outcomes: TypeAlias = Sequence[Any] | ServingError | EndAll
"""What a batch came to; see :meth:`Batch.done`."""


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
