"""What a batch queue must know of a task, and how a large one becomes several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from tfs.core.errors import ServingError


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
