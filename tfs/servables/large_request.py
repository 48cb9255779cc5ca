"""A request with more rows than a queue holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfs.core.errors import InvalidItems, ServingError, serving_error
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.tensor_view import concatenate
from tfs.servables.batching_loop import BatchingLoop


class LargeRequest:
    """A request larger than a queue holds, submitted portion by portion.

    One at a time, so that others get their turns between them and the queue never
    fills. The request ends with its last portion, or with the first that fails.
    Loop-confined, except that portions end on any thread.
    """

    def __init__(
        self,
        task: InferenceTask,
        num_rows: int,
        split: Callable[
            [InferenceTask, int, int, Callable[[Outcome], None]], InferenceTask
        ],
        submit: Callable[[InferenceTask], None],
        loop: BatchingLoop,
    ) -> None:
        self._task = task
        self._num_rows = num_rows
        self._split = split
        self._submit = submit
        self._loop = loop
        self._start = 0
        self._outcomes: list[Tensors] = []

    def go_on(self) -> None:
        """Submits the next portion."""
        task = self._task
        try:
            stop = min(self._start + self._num_rows, task.num_rows)
            portion = self._split(task, self._start, stop, self._done)
        except Exception as error:
            task.on_done(serving_error(error, "splitting a request failed"))
            return
        self._submit(portion)

    def _done(self, outcome: Outcome) -> None:
        task = self._task
        if isinstance(outcome, ServingError):
            if isinstance(outcome, InvalidItems):
                outcome = outcome.after(self._start)
            task.on_done(outcome)
            return
        self._outcomes.append(outcome)
        self._start += self._num_rows
        if self._start < task.num_rows:
            self._loop.post(self.go_on)
            return
        try:
            outcome = join_parts(task, self._outcomes)
        except Exception as error:
            task.on_done(serving_error(error, "joining the portions failed"))
            return
        task.on_done(outcome)


def join_parts(task: InferenceTask, outcomes: Sequence[Tensors]) -> Tensors:
    """Returns the outputs of a task that ran in parts, given in order of the rows."""
    return {
        name: concatenate([outcome[name] for outcome in outcomes])
        for name in outcomes[0]
    }
