"""To how many rows a queue's batches are padded, by what sizes were measured to take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batching.batching_options import Padding
from batching.cost_table import CostTable
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_task import Task

_FIRST_LOOK = 32  # observations before the first look at cheaper sizes
_LOOK_AGAIN = 1024


class BatchSizes:
    """Learns what batches take, and keeps ``queue.padded`` up to date. Confined.

    Args:
        queue: The queue.
        padding: What to do between two allowed sizes.
        costs: Measured time by batch size; kept up to date.
        learns: Whether times are of use.

    """

    def __init__(
        self,
        queue: BatchQueue[Any],
        padding: Padding,
        costs: CostTable,
        *,
        learns: bool,
    ) -> None:
        self._queue = queue
        self._padding = padding
        self._costs = costs
        self._padded_at = 0
        self._look_again_at = _FIRST_LOOK
        self.learns = learns
        options = queue.options
        queue.padded = [
            options.next_allowed(rows) for rows in range(options.max_batch_rows + 1)
        ]
        self._refresh()

    def learn(
        self, tasks: Sequence[Task], num_rows: int, padded_rows: int, device_s: float
    ) -> None:
        """Learns how long a batch took."""
        queue = self._queue
        known_s = queue.s_per_row
        s_per_row = device_s / num_rows
        queue.s_per_row = (
            known_s + 0.1 * (s_per_row - known_s) if known_s else s_per_row
        )
        window = queue.window
        if window is not None and window.observe(tasks, device_s):
            return
        if self.learns:
            self._costs.observe(padded_rows, device_s)
            self._refresh()

    def _refresh(self) -> None:
        """Recomputes what to pad to, if the measured times changed much."""
        costs = self._costs
        if costs.num_changes < self._padded_at:
            return
        # Times drift slowly, so a table of sizes is good for a number of batches. Only
        # the first few batches, of which nothing was known, update it at once.
        self._padded_at = costs.num_changes + min(1 + costs.num_changes // 16, 64)
        if costs:
            options = self._queue.options
            self._look_again()
            # If no sizes were fixed, any batch may be padded, but only where that
            # passes a step of the kernels.
            cheaper = 0.9 if options.allowed_rows else 0.8
            most = options.max_batch_rows
            sizes = options.allowed_rows or [n for n in costs.sizes if n <= most]
            larger = costs.cheaper_sizes(sizes, cheaper)
            next_sizes = [options.next_allowed(rows) for rows in range(1, most + 1)]
            self._queue.padded = [0, *(larger.get(size, size) for size in next_sizes)]

    def _look_again(self) -> None:
        """From time to time lets sizes be tried again that batches are padded past.

        Such a size is not measured any more, and it may have looked expensive only
        because of noise. It is tried again soon at first, and seldom later.
        """
        costs = self._costs
        if costs.num_changes < self._look_again_at:
            return
        self._look_again_at = costs.num_changes + min(self._look_again_at, _LOOK_AGAIN)
        options = self._queue.options
        for rows, size in enumerate(self._queue.padded):
            next_size = options.next_allowed(rows)
            if size != next_size:
                costs.doubt(next_size)

    def room_of(self, num_waiting_rows: int) -> int | None:
        """Returns how many rows to take for little padding; None sets no limit."""
        options, costs = self._queue.options, self._costs
        rows = min(num_waiting_rows, options.max_batch_rows)
        down = max((size for size in options.allowed_rows if size < rows), default=0)
        if not down or rows in options.allowed_rows:
            return None
        if self._padding is Padding.CHEAPEST:
            if not costs:
                return None
            up_s = costs.predict_s(self._queue.padded[rows]) / rows
            if up_s <= costs.predict_s(down) / down:
                return None
        return down
