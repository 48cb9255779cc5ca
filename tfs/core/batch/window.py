"""What chooses which of the tasks that wait are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tfs.core.batch.batch_task import Task, TaskT


class Window(Protocol):
    """Chooses the batches of one queue. Confined to the queue's thread.

    Attributes:
        ranks_low: Whether it chooses among both classes of priority. If not, tasks are
            taken as they came while some of low priority wait, or some that are larger
            than a batch.

    """

    ranks_low: bool

    def note_arrival(self, num_rows: int, now_s: float) -> None:
        """Notes that a task came in."""
        ...

    def choose(
        self, tasks: Sequence[TaskT], now_s: float
    ) -> tuple[Sequence[TaskT], Sequence[TaskT]]:
        """Returns the tasks of the next batch, and those to give up as too late.

        Args:
            tasks: All that wait: those of high priority first, each class as it came.
            now_s: The time now.

        """
        ...

    def observe(self, tasks: Sequence[Task], device_s: float) -> bool:
        """Learns how long a batch took; False if it is for others to learn."""
        ...
