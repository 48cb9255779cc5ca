"""A task that is spread over several batches."""

from __future__ import annotations

from typing import Any

from tfs.core.batch_task import Join, Split, Task
from tfs.core.errors import InvalidItems, ServingError, forget_frames, serving_error


class SplitTask:
    """The rest of a task of which parts were taken; ends it when all parts ended.

    Confined to the queue's thread. Stands in the queue in the task's place, and is its
    own ``cancel``: once a part has failed, the rest is of no use.
    """

    __slots__ = (
        "_error",
        "_join",
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
        self._join = join
        self._next_row = 0
        self._num_open = 0
        self._outcomes: list[object] = []
        self._error: ServingError | None = None

    @property
    def cancel(self) -> SplitTask:
        return self

    @property
    def error(self) -> ServingError | None:
        return self._error or self._task.cancel.error

    def take(self, rows: int) -> Task | None:
        """Returns a task of the next ``rows`` rows; None if splitting failed."""
        index = len(self._outcomes)
        start = self._next_row
        try:
            part: Task = self._split(
                self._task,
                start,
                start + rows,
                lambda outcome: self._end_part(index, start, outcome),
            )
        except Exception as error:
            self._error = serving_error(error, "splitting a task over batches failed")
            forget_frames(self._error)  # this one holds us, and the task
            return None
        self._outcomes.append(None)
        self._next_row += rows
        self.num_rows -= rows
        self._num_open += 1
        return part

    def on_done(self, error: ServingError | None) -> None:
        """Ends what was not taken."""
        self._error = self._error or error
        self.num_rows = 0
        self._end_if_over()

    def _end_part(self, index: int, start: int, outcome: object) -> None:
        if isinstance(outcome, InvalidItems):
            outcome = outcome.after(start)  # its caller counts all rows
        self._outcomes[index] = outcome
        self._num_open -= 1
        if isinstance(outcome, ServingError) and self._error is None:
            self._error = outcome
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._num_open or self.num_rows:
            return
        if self._error is not None:
            self._task.on_done(self._error)
            return
        try:
            outcome = self._join(self._task, self._outcomes)
        except Exception as error:
            outcome = serving_error(error, "joining the parts of a task failed")
            forget_frames(outcome)  # this one holds it, and all parts
        self._task.on_done(outcome)
