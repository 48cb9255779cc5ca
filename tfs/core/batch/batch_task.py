"""What a batch queue must know of a task, how it is split, and whose task a thread runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from tfs.core.errors import InvalidItems, ServingError, forget_frames, serving_error


class Cancellation(Protocol):
    """Says whether somebody still waits; see :class:`tfs.core.servable.CancelToken`."""

    @property
    def error(self) -> ServingError | None:
        """Why nobody waits for the result any more; None while somebody does."""
        ...


class Task(Protocol):
    """What a queue must know of a task; see :class:`tfs.core.servable.InferenceTask`.

    The queue stores tasks themselves: nothing is allocated per task.

    Attributes:
        arrived_s: When it was put into its queue, by that queue's clock; set by the
            queue.

    """

    arrived_s: float

    @property
    def num_rows(self) -> int:
        """Rows of a batch that it fills; never changes."""
        ...

    @property
    def deadline_s(self) -> float | None:
        """On the caller's clock; None for none. Never changes."""
        ...

    @property
    def cancel(self) -> Cancellation:
        """Tells whether somebody still waits; read when a batch is taken."""
        ...

    # The type is Any, because each kind of task has outcomes of its own besides a
    # ServingError, and a callable that takes those is no Callable[[object], None].
    @property
    def on_done(self) -> Callable[[Any], None]:
        """Takes the outcome or a ServingError, once. Quick, does not raise."""
        ...


TaskT = TypeVar("TaskT", bound=Task)

Split: TypeAlias = Callable[[TaskT, int, int, Callable[[Any], None]], TaskT]
"""``split(task, start, stop, on_done)`` returns a task of those rows, which ends by
calling on_done."""


class PartOutcomes(Protocol):
    """Puts the outcome of a task together from those of its parts.

    Called in any order of the parts, never by two threads at once; what it raises is
    the task's outcome.
    """

    def add(self, start: int, outcome: Any) -> None:
        """Takes the outcome of the part whose first row is ``start``."""
        ...

    def whole(self) -> Any:
        """Returns the task's outcome, after the last part."""
        ...


Join: TypeAlias = Callable[[TaskT], PartOutcomes]
"""``join(task)`` returns what puts a task's outcome together."""


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


def finish_splits(batch: list[TaskT]) -> tuple[int, int]:
    """Replaces split tasks, of which no rows are left, by their last parts.

    Returns how many there were, and how many rows dropped out of the batch because
    splitting failed.
    """
    num_ended = lost = 0
    for index in range(len(batch) - 1, -1, -1):
        split: object = batch[index]
        if not isinstance(split, SplitTask):
            continue
        num_ended += 1
        rows = split.num_rows
        part = split.take(rows)
        if part is None:
            lost += rows
            del batch[index]
            split.on_done(split.error)
        else:
            batch[index] = cast(TaskT, part)
    return num_ended, lost


def _not_joined(error: Exception) -> ServingError:
    outcome = serving_error(error, "joining the parts of a task failed")
    forget_frames(outcome)  # they hold the task, and its parts
    return outcome


class RequestScope(threading.local):
    """Each thread's own.

    Attributes:
        deadline_s: When the request's answer is of no use any more, monotonic.
        cancel: Tells whether somebody still waits; None if that is not known.

    """

    deadline_s: float | None = None
    cancel: Cancellation | None = None


CURRENT = RequestScope()


@contextlib.contextmanager
def request_scope(
    deadline_s: float | None = None, cancel: Cancellation | None = None
) -> Iterator[None]:
    """Lets batched parts know whose request this thread runs.

    This is for callers of models. A call of a batched part leaves its queue when
    ``deadline_s`` (monotonic) passes or ``cancel`` is marked.
    """
    before = CURRENT.deadline_s, CURRENT.cancel
    CURRENT.deadline_s, CURRENT.cancel = deadline_s, cancel
    try:
        yield
    finally:
        CURRENT.deadline_s, CURRENT.cancel = before
