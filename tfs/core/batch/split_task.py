"""A task that is spread over several batches."""

from __future__ import annotations

from typing import Any

from tfs.core.batch.batch_task import Join, Split, Task
from tfs.core.errors import InvalidItems, ServingError, forget_frames, serving_error


class SplitTask:
    """The rest of a task of which parts were taken; ends it when all parts ended.

    Confined to the queue's thread. Stands in the queue in the task's place, and is its
    own ``cancel``: once a part has failed, the rest is of no use.
    """

    __slots__ = (
        "_error",
        "_next_row",
        "_num_open",
        "_outcomes",
        "_split",
        "_task",
        "arrived_s",
        "deadline_s",
        "num_rows",
    )

    def __init__(self, task: Task, split: Split[Any], join: Join[Any]) -> None:
        self.num_rows = task.num_rows
        self.deadline_s = task.deadline_s
        self.arrived_s = task.arrived_s
        self._task = task
        self._split = split
        self._next_row = 0
        self._num_open = 0
        self._outcomes = join(task)
        self._error: ServingError | None = None

    @property
    def cancel(self) -> SplitTask:
        return self

    @property
    def error(self) -> ServingError | None:
        return self._error or self._task.cancel.error

    def take(self, rows: int) -> Task | None:
        """Returns a task of the next ``rows`` rows; None if splitting failed."""
        start = self._next_row
        try:
            part: Task = self._split(
                self._task,
                start,
                start + rows,
                lambda outcome: self._end_part(start, outcome),
            )
        except Exception as error:
            self._error = serving_error(error, "splitting a task over batches failed")
            forget_frames(self._error)  # this one holds us, and the task
            return None
        part.arrived_s = self.arrived_s  # it was never put into the queue itself
        self._next_row += rows
        self.num_rows -= rows
        self._num_open += 1
        return part

    def on_done(self, error: ServingError | None) -> None:
        """Ends what was not taken."""
        self._error = self._error or error
        self.num_rows = 0
        self._end_if_over()

    def _end_part(self, start: int, outcome: object) -> None:
        if isinstance(outcome, InvalidItems):
            outcome = outcome.after(start)  # its caller counts all rows
        if self._error is None and not isinstance(outcome, ServingError):
            try:
                self._outcomes.add(start, outcome)
            except Exception as error:
                outcome = _not_joined(error)
        if isinstance(outcome, ServingError) and self._error is None:
            self._error = outcome
        self._num_open -= 1
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._num_open or self.num_rows:
            return
        if self._error is not None:
            self._task.on_done(self._error)
            return
        try:
            outcome = self._outcomes.whole()
        except Exception as error:
            outcome = _not_joined(error)
        self._task.on_done(outcome)


def _not_joined(error: Exception) -> ServingError:
    outcome = serving_error(error, "joining the parts of a task failed")
    forget_frames(outcome)  # they hold the task, and its parts
    return outcome
