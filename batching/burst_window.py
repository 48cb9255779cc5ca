"""Waits a little for the rest of a burst, where bursts were seen and waiting pays.

A batch goes as soon as the device is idle, so a burst that takes two milliseconds to
arrive is computed as one request alone and then the others. That is right for requests
that come by chance. Where bursts come again and again, the first of a burst gains less
than the others lose: a request to a model with large fixed costs, whose batch of one
takes nearly as long as a batch of twenty, keeps nineteen others waiting.

What waiting would have gained is computed for each batch that began on an idle device,
from the measured times of batches. As long as it is more than nothing on average, the
first of a burst waits, and for no longer than bursts took to arrive. A fixed window
(``timeout_s``) lost the comparison wherever requests are alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from batching.cost_table import CostTable
from tfs.core.batch.batch_task import Task

_MOST = 0.1
"""Nobody waits for longer than this share of the time in which a request is computed."""

_WEIGHT = 0.2  # of the last batch
_LONE_WEIGHT = 0.4  # of a request that was alone: such ones soon wait no longer
_FORGETS = 0.9  # how much of the longest burst counts for the next
_MARGIN = 1.25  # over the longest burst


class BurstWindow:
    """How long the first of a burst waits. Confined to the scheduler's thread.

    Args:
        costs: Times by batch size, kept up to date by others.
        max_batch_rows: Most rows of one batch.

    Attributes:
        wait_s: Seconds that the oldest task waits for others; mostly 0.

    """

    def __init__(self, costs: CostTable, max_batch_rows: int) -> None:
        self._costs = costs
        self._max_batch_rows = max_batch_rows
        self._gain = 0.0
        self._spread_s = 0.0
        self.wait_s = 0.0

    def note(
        self, tasks: Sequence[Task], waiting: Sequence[Task], started_s: float
    ) -> float:
        """Learns from a batch that has ended; returns ``wait_s``.

        Args:
            tasks: Its tasks, in order of arrival.
            waiting: The tasks that wait now, in order of arrival.
            started_s: When it began.

        """
        predict_s = self._costs.predict_s
        most_s = _MOST * predict_s(1)
        first_s = tasks[0].arrived_s
        if not most_s or started_s - first_s > 2 * most_s:
            return self.wait_s  # it waited for the device, as those behind it did
        first_rows = more_rows = 0
        last_s = first_s
        for each in (tasks, waiting):
            for task in each:
                arrived_s = task.arrived_s
                if arrived_s <= first_s:
                    first_rows += task.num_rows
                elif arrived_s <= first_s + most_s:
                    more_rows += task.num_rows
                    last_s = max(last_s, arrived_s)
                else:
                    break
        more_rows = min(more_rows, self._max_batch_rows - first_rows)
        spread_s = last_s - first_s
        self._spread_s = max(spread_s, _FORGETS * self._spread_s)
        wait_s = min(_MARGIN * self._spread_s, most_s)
        num_rows = first_rows + max(0, more_rows)
        together_s = predict_s(num_rows)
        gain_s = -num_rows * wait_s
        if more_rows > 0:
            alone_s = predict_s(first_rows)
            gain_s += more_rows * (alone_s + predict_s(more_rows) - together_s)
            gain_s -= first_rows * (together_s - alone_s)
        gain = gain_s / (num_rows * together_s)
        is_lone = more_rows <= 0 and len(tasks) == 1
        weight = _LONE_WEIGHT if is_lone else _WEIGHT
        self._gain += weight * (gain - self._gain)
        self.wait_s = wait_s if self._gain > 0 else 0.0
        return self.wait_s
