"""How long batches take, by size: measured before serving and updated while serving.

It is a table and not a formula because kernels have steps (a matrix product over 12
rows can take longer than over 16). By these steps it is chosen to how many rows batches
are padded.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_task import Task


class Padding(enum.Enum):
    """What to do with a batch between two allowed sizes.

    UP: pad to the next size. DOWN: take only what fills the size below; the rest stays
    in the queue. CHEAPEST: whichever costs less device time per row by measurement; UP
    until there is a measurement. With UP and CHEAPEST a batch is padded even further if
    a larger allowed size was measured to be cheaper.
    """

    UP = "up"
    DOWN = "down"
    CHEAPEST = "cheapest"


_ALPHA = 0.1  # weight of a new observation, after the first ten
_CLOSE = 0.97  # a size within 3 % of the best rate is as good
_CHEAPER = 0.9  # a step of a kernel is larger; a smaller difference may be noise
# Smaller differences may be noise, and joining with padding has a cost.
_PADDING_S = 100e-6
_NUM_TO_COMPARE = 3  # observations that a size needs to be compared
_LARGEST_JUMP = 3.0  # a batch that took longer than this many means was interrupted


class CostTable:
    """Seconds of one batch by rows. Confined to one thread.

    Attributes:
        num_changes: Grows whenever a prediction changes.

    """

    def __init__(self, call_s_by_rows: Mapping[int, float] | None = None) -> None:
        self._call_s = dict(call_s_by_rows or {})
        self._measured = frozenset(self._call_s)
        self._sizes = sorted(self._call_s)
        # Observations while serving, for comparing sizes. They include the way to the
        # device, which measurements made beforehand do not.
        self._seen_s: dict[int, float] = {}
        self._num_seen: dict[int, int] = {}
        self.num_changes = 0

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return bool(self._sizes)

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes measured, ascending."""
        return tuple(self._sizes)

    def observe(self, num_rows: int, duration_s: float) -> None:
        """Records how long a batch of ``num_rows`` rows, padding included, took."""
        seen_s = duration_s
        known = self._call_s.get(num_rows)
        if known is None:
            # The first run of a size is often the slowest, so a table made beforehand
            # counts for more than one such run.
            expected = self.predict_s(num_rows)
            if expected:
                duration_s = expected + 0.5 * (duration_s - expected)
            self._call_s[num_rows] = duration_s
            self._sizes.insert(bisect_left(self._sizes, num_rows), num_rows)
        else:
            num = self._num_seen.get(num_rows, 0)
            is_measured = num_rows in self._measured
            alpha = _ALPHA if is_measured else max(_ALPHA, 1 / (num + 1))
            if is_measured or num >= _NUM_TO_COMPARE:
                duration_s = min(duration_s, _LARGEST_JUMP * known)
            if 0 < duration_s * _LARGEST_JUMP < known:
                # The batches before were interrupted. Nothing makes one so much quicker
                # by accident, so a few are enough to forget them.
                self._call_s[num_rows] = math.sqrt(known * duration_s)
            else:
                self._call_s[num_rows] = known + alpha * (duration_s - known)
        self._note_seen(num_rows, seen_s)
        self.num_changes += 1

    def _note_seen(self, num_rows: int, duration_s: float) -> None:
        num = self._num_seen.get(num_rows, 0)
        mean_s = self._seen_s.get(num_rows, 0.0)
        if num >= _NUM_TO_COMPARE:
            duration_s = min(duration_s, _LARGEST_JUMP * mean_s)
        alpha = max(_ALPHA, 1 / (num + 1))
        self._seen_s[num_rows] = mean_s + alpha * (duration_s - mean_s)
        self._num_seen[num_rows] = num + 1

    def predict_s(self, num_rows: int) -> float:
        """Returns the seconds of a batch of that size; 0 if nothing was measured.

        It interpolates linearly between two sizes. Above the largest size times grow in
        proportion, and below the smallest they stay the same.
        """
        sizes = self._sizes
        if not sizes:
            return 0.0
        index = bisect_left(sizes, num_rows)
        if index == len(sizes):
            return self._beyond(num_rows)
        upper = sizes[index]
        upper_s = self._call_s[upper]
        if upper == num_rows or index == 0:
            return upper_s
        lower = sizes[index - 1]
        lower_s = self._call_s[lower]
        share = (num_rows - lower) / (upper - lower)
        return lower_s + share * (upper_s - lower_s)

    def _beyond(self, num_rows: int) -> float:
        last = self._sizes[-1]
        return self._call_s[last] * num_rows / last

    def doubt(self, num_rows: int) -> None:
        """Compares a size with no other until it was seen a few more times."""
        self._num_seen[num_rows] = 0
        self.num_changes += 1

    def cheaper_sizes(
        self, sizes: Sequence[int], cheaper: float = _CHEAPER
    ) -> Mapping[int, int]:
        """Returns, for each size that has a cheaper larger one, the cheapest.

        A size is cheaper if it costs less than ``cheaper`` times as much. Only times of
        the same kind are compared: either both sizes were seen a few times while
        serving, or neither was and both were measured beforehand.
        """
        found: dict[int, int] = {}
        seen = {
            size: self._seen_s[size]
            for size in sizes
            if self._num_seen.get(size, 0) >= _NUM_TO_COMPARE
        }
        unseen = {
            size: self._call_s[size]
            for size in sizes
            if size in self._measured and size not in self._num_seen
        }
        for group in (seen, unseen):
            best, best_s = 0, inf
            for size in sorted(group, reverse=True):
                size_s = group[size]
                if best_s < min(size_s * cheaper, size_s - _PADDING_S):
                    found[size] = best
                if size_s < best_s:
                    best, best_s = size, size_s
        return found

    def best_batch_rows(self) -> int | None:
        """Returns the smallest measured size within 3 % of the best rows per second.

        More rows would add latency and no throughput. None if nothing was measured.
        """
        if not self._sizes:
            return None
        rates = {size: size / max(self._call_s[size], 1e-12) for size in self._sizes}
        best = max(rates.values())
        return next(size for size in self._sizes if rates[size] >= best * _CLOSE)

    def smallest_keeping_up(self, rows_per_s: float) -> int | None:
        """Returns the smallest measured size whose rate reaches ``rows_per_s``.

        If none does, it is the most efficient size; None if nothing was measured.
        """
        for size in self._sizes:
            if size >= rows_per_s * self._call_s[size]:
                return size
        return self.best_batch_rows()


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
