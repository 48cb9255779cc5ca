"""What a queue counts about its batches, cheaply enough for every batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from tfs.core.stats import HistogramSnapshot

SHORT_S: Final = 100e-6
SAMPLE: Final = 32
"""Counting would take as long as computing a batch that is shorter than SHORT_S. So of
these batches of one size, the times of every SAMPLE-th stand for all."""
EARLY: Final = tuple(
    0 if num & (num - 1) else num - num // 2 for num in range(SAMPLE + 1)
)
"""Until SAMPLE batches of a size were seen, the first, second, fourth and so on are
counted. Entry n says for how many batches the n-th stands: all since the one counted
before."""


def num_batches_meant(device_s: float, num_alike: int) -> int:
    """Returns for how many batches the times of this one stand; 0 if not counted.

    Args:
        device_s: Device time of the batch.
        num_alike: How many batches of its size there were, this one included.

    """
    if device_s >= SHORT_S:
        return 1
    if num_alike <= SAMPLE:
        return EARLY[num_alike]
    return 0 if num_alike % SAMPLE else SAMPLE


_NUM_TIMES = 32  # buckets in powers of two of a microsecond, up to 36 minutes
_TIME_BOUNDS = tuple(2**index * 1e-6 for index in range(_NUM_TIMES - 1))
_NUM_DEPTHS = 22  # buckets for none, then in powers of two, up to a million
_DEPTH_BOUNDS = (0.0, *(2.0**index for index in range(_NUM_DEPTHS - 2)))


@dataclass(slots=True, eq=False)
class QueueStats:
    """What queues count. Written by the scheduler's thread only.

    These are plain lists instead of ``tfs.core.stats.Histogram``: a single writer needs
    no cell per thread, and it has to be cheap because a batch may be a single task.
    Others may read at any time; what they read may lag by one batch.

    Attributes:
        rows_counts: Batches that finished, by their rows.
        num_padding_rows: Rows added to reach an allowed size.
        num_failures: Batches that failed as a whole.
        num_failed_tasks: Tasks that ended with an error of their batch.
        num_retries: Batches run again because a larger one failed.
        device_s: Device time used.
        num_refused: Tasks that were not admitted.
        num_expired: Tasks whose deadline passed in the queue.
        num_cancelled: Tasks that left because nobody waited any more.
        num_evicted: Tasks of low priority that gave way to others.
        num_split: Tasks that were spread over several batches.

    """

    rows_counts: list[int] = field(default_factory=lambda: [0, 0])
    num_padding_rows: int = 0
    num_failures: int = 0
    num_failed_tasks: int = 0
    num_retries: int = 0
    device_s: float = 0.0
    num_refused: int = 0
    num_expired: int = 0
    num_cancelled: int = 0
    num_evicted: int = 0
    num_split: int = 0
    _max_batch_rows: int = 1
    _num_more_rows: int = 0
    _wait_counts: list[int] = field(default_factory=lambda: [0] * _NUM_TIMES)
    _wait_total_s: float = 0.0
    _exec_counts: list[int] = field(default_factory=lambda: [0] * _NUM_TIMES)
    _depth_counts: list[int] = field(default_factory=lambda: [0] * _NUM_DEPTHS)
    _depth_total: float = 0.0

    def note_shape(self, num_tasks: int, num_rows: int, padded_rows: int) -> None:
        """Counts a batch's tasks and padding; not needed if both equal its rows."""
        self._num_more_rows += num_rows - num_tasks
        self.num_padding_rows += padded_rows - num_rows

    def note_times(
        self, wait_s: float, device_s: float, num_waiting: int, num: int
    ) -> None:
        """Counts the times of a batch that stands for ``num`` batches.

        ``wait_s`` is how long its oldest task waited, ``num_waiting`` the number of
        tasks that wait now that it has ended.
        """
        if wait_s > 0:  # it may have come after the clock was read for the batch
            self._wait_total_s += num * wait_s
        self._wait_counts[bisect_left(_TIME_BOUNDS, wait_s)] += num
        self.device_s += num * device_s
        self._exec_counts[bisect_left(_TIME_BOUNDS, device_s)] += num
        self._depth_counts[bisect_left(_DEPTH_BOUNDS, num_waiting)] += num
        self._depth_total += num * num_waiting

    def make_room(self, max_batch_rows: int) -> None:
        """Prepares for batches of so many rows, of which it counts the fill from now on."""
        self._max_batch_rows = max_batch_rows
        self.rows_counts += [0] * (max_batch_rows + 1 - len(self.rows_counts))

    def add(self, other: QueueStats) -> None:
        """Adds what was counted elsewhere; the largest batch may have another size."""
        self.make_room(max(self._max_batch_rows, other._max_batch_rows))
        self.rows_counts += [0] * (len(other.rows_counts) - len(self.rows_counts))
        for each in fields(self):
            mine, others = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, list):
                mine[: len(others)] = map(sum, zip(mine, others, strict=False))
            elif each.name != "_max_batch_rows":
                setattr(self, each.name, mine + others)

    @property
    def num_batches(self) -> int:
        """Batches that finished, retries included."""
        return sum(self.rows_counts)

    @property
    def num_rows(self) -> int:
        """Rows in these batches, without padding."""
        return sum(rows * num for rows, num in enumerate(self.rows_counts))

    @property
    def num_tasks(self) -> int:
        """Tasks in these batches."""
        return self.num_rows - self._num_more_rows

    def batch_rows(self) -> HistogramSnapshot:
        """Rows per batch, with a bucket for each size."""
        bounds = tuple(float(rows) for rows in range(len(self.rows_counts)))
        return HistogramSnapshot(bounds, (*self.rows_counts, 0), float(self.num_rows))

    def batch_fill(self) -> HistogramSnapshot:
        """Rows per batch as a share of the largest, in tenths."""
        most = self._max_batch_rows
        counts = [0] * 11
        total = 0.0
        for rows, num in enumerate(self.rows_counts):
            if num:
                # Rounded up: a bucket's bound is inclusive.
                counts[min(10, max(0, -(-10 * rows // most) - 1))] += num
                total += num * rows / most
        bounds = tuple(tenths / 10 for tenths in range(1, 11))
        return HistogramSnapshot(bounds, tuple(counts), total)

    def wait(self) -> HistogramSnapshot:
        """Seconds that the oldest task of each batch waited."""
        return _times(self._wait_counts, self._wait_total_s)

    def execution(self) -> HistogramSnapshot:
        """Seconds of device time per batch."""
        return _times(self._exec_counts, self.device_s)

    def depth(self) -> HistogramSnapshot:
        """Tasks that waited when a batch ended."""
        return HistogramSnapshot(
            _DEPTH_BOUNDS, tuple(self._depth_counts), self._depth_total
        )


def _times(counts: Sequence[int], total_s: float) -> HistogramSnapshot:
    return HistogramSnapshot(_TIME_BOUNDS, tuple(counts), total_s)


@dataclass(slots=True)
class SignatureCounts:
    """The counts of one signature of a version. Written on the loop, read anywhere.

    They outlive the queues: a version that moves to another place gets new queues, which
    count on here.

    Attributes:
        by_key: What queues have counted, by what their requests have in common.
        dropped: The sum of queues whose shapes are no longer requested.
        num_past: Requests that bypassed the queues: larger than a batch, fitting no queue
            or without rows; counted when they come.
        num_past_rows: Rows of these.
        num_past_calls: Calls of the servable that were made for them.

    """

    by_key: dict[object, QueueStats] = field(default_factory=dict)
    dropped: QueueStats = field(default_factory=QueueStats)
    num_past: int = 0
    num_past_rows: int = 0
    num_past_calls: int = 0

    def note_past(self, num_rows: int) -> None:
        """Counts a request past the queues; its calls are counted as they are made."""
        self.num_past += 1
        self.num_past_rows += num_rows

    def stats_of(self, key: object) -> QueueStats:
        """Returns what the queue of that key counts in."""
        return self.by_key.setdefault(key, QueueStats())

    def drop(self, key: object) -> None:
        """Adds the counts of a queue that is gone to those of all such."""
        self.dropped.add(self.by_key.pop(key))

    def total(self) -> QueueStats:
        """Returns the sum over all queues, present and former."""
        total = QueueStats()
        for each in (*list(self.by_key.values()), self.dropped):
            total.add(each)
        return total
