"""Chooses the tasks to compute when not all can meet their deadlines.

First come, first served meets no deadline at all once a queue is longer than the
deadlines allow, because every task waits until it is late. Giving up the tasks at the
front keeps the rest on time. But giving up one task to save another that is almost late
makes batches small, and small batches lose throughput. So the rule is: order the tasks
by deadline, and start from the first one for which a batch that is large enough to keep
up with arrivals still meets that task's deadline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from batching.cost_table import CostTable
from tfs.core.batch.batch_task import Task, TaskT
from tfs.core.errors import InvalidArgument

_NUM_ARRIVALS = 32
_HEADROOM = 1.05
_LONGEST_REST_S = 1.0
# A client whose deadlines cannot be met gets few calls, if it is alone.
_MOST_RESTS = 16


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """How careful the window is. Immutable.

    Attributes:
        margin: A task counts as late if this factor times the predicted time is too
            long. It should be above 1 for a device whose times vary. In a simulation at
            1.3 times the capacity, 1.05 loses half a percent of the requests if times
            are steady, and keeps two percent more in time if they vary by 8 %.

    """

    margin: float = 1.05

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise InvalidArgument(f"margin must be positive; was {self.margin}")


class DeadlineWindow:
    """The rule, with the arrival rate it needs. A ``Window``; confined to one thread.

    Args:
        options: How careful to be.
        table: Times by batch size. Without measurements, tasks are taken in order of
            deadline.
        max_batch_rows: Most rows of one batch.

    """

    def __init__(
        self, options: WindowOptions, table: CostTable, max_batch_rows: int
    ) -> None:
        self._table = table
        self._margin = options.margin
        self._max_batch_rows = max_batch_rows
        self._arrivals: deque[float] = deque(maxlen=_NUM_ARRIVALS)
        self._rows: deque[int] = deque(maxlen=_NUM_ARRIVALS)
        self._num_changes = -1
        self._begun_s: float | None = None  # the last batch, or the first refusal
        self._rests = 1
        self._cost_s: list[float] = []
        self._by_cost: list[float] = []
        self._most_rows: list[int] = []

    ranks_low = True

    def note_arrival(self, num_rows: int, now_s: float) -> None:
        """Notes that a task arrived."""
        self._arrivals.append(now_s)
        self._rows.append(num_rows)

    def rows_per_s(self) -> float:
        """Returns the rate over the last arrivals, 0 while it is unknown."""
        arrivals = self._arrivals
        if len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
            return 0.0
        rows = sum(self._rows) - self._rows[0]
        return rows / (arrivals[-1] - arrivals[0])

    def choose(
        self, tasks: Sequence[TaskT], now_s: float
    ) -> tuple[Sequence[TaskT], Sequence[TaskT]]:
        """Returns the tasks of the next batch, and those to give up.

        They are ranked by deadline, those without one last, as they came. No task is
        given up while a batch from the front would keep up with the arrivals. If no
        batch would, the largest that is in time is taken. If no task could be in time,
        all are given up, except that the last is tried now and then: only a batch that
        is computed can show that the times have become shorter again.
        """
        tasks = sorted(tasks, key=_by_deadline)
        start, stop = self._chosen(tasks, now_s)
        if start < stop:
            self._rests = 1
        elif tasks and self._may_try(tasks[-1], now_s):
            start, stop = len(tasks) - 1, len(tasks)
            self._rests = min(2 * self._rests, _MOST_RESTS)
        if start < stop or self._begun_s is None:
            self._begun_s = now_s
        return tasks[start:stop], tasks[:start]

    def observe(self, tasks: Sequence[Task], device_s: float) -> bool:
        """Learns nothing: others keep the table up to date."""
        return False

    def _may_try(self, task: Task, now_s: float) -> bool:
        """Tells whether the last batch began so long ago that one may be in vain."""
        if self._begun_s is None:
            return False
        call_s = self._table.predict_s(task.num_rows)
        rest_s = self._rests * min(call_s, _LONGEST_REST_S)
        return now_s - self._begun_s >= call_s + rest_s

    def _chosen(self, tasks: Sequence[Task], now_s: float) -> tuple[int, int]:
        ends = list(accumulate((task.num_rows for task in tasks), initial=0))
        if not self._table:
            return 0, bisect_right(ends, self._max_batch_rows) - 1
        self._refresh()
        need = self._table.smallest_keeping_up(_HEADROOM * self.rows_per_s()) or 1
        need = min(need, self._max_batch_rows)
        best = (0, len(tasks), len(tasks))
        for start, task in enumerate(tasks):
            deadline_s = task.deadline_s
            slack_s = inf if deadline_s is None else deadline_s - now_s
            stop = self._last_in_time(ends, start, slack_s)
            rows = ends[stop] - ends[start]
            if stop > start and rows >= min(need, ends[-1] - ends[start]):
                return start, stop
            if rows > best[0]:
                best = (rows, start, stop)
        return best[1], best[2]

    def _last_in_time(self, ends: Sequence[int], start: int, slack_s: float) -> int:
        """Returns where the largest batch from ``start`` that ends in time stops."""
        index = bisect_right(self._by_cost, slack_s) - 1
        if index < 0:
            return start
        most = ends[start] + self._most_rows[index]
        stop = bisect_right(ends, most, lo=start) - 1
        # Time does not always grow with rows, and tasks may not exactly fill a size
        # that is in time.
        while stop > start and self._cost_s[ends[stop] - ends[start]] > slack_s:
            stop -= 1
        return stop

    def _refresh(self) -> None:
        if self._num_changes == self._table.num_changes:
            return
        self._num_changes = self._table.num_changes
        cost_s = [
            self._margin * self._table.predict_s(rows)
            for rows in range(self._max_batch_rows + 1)
        ]
        ranked = sorted(range(1, len(cost_s)), key=cost_s.__getitem__)
        self._cost_s = cost_s
        self._by_cost = [cost_s[rows] for rows in ranked]
        self._most_rows = list(accumulate(ranked, max))


def _by_deadline(task: Task) -> tuple[float, float]:
    return inf if task.deadline_s is None else task.deadline_s, task.arrived_s
