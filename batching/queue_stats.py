"""What a queue counts about its batches, cheaply enough for every batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tfs.core.stats import HistogramSnapshot

_NUM_TIMES = 32  # powers of two of a microsecond, up to 36 minutes
_TIME_BOUNDS = tuple(2**index * 1e-6 for index in range(_NUM_TIMES - 1))


class QueueStats:
    """Counts of one queue since it was made. Written by the scheduler's thread only.

    Plain lists instead of ``tfs.core.stats.Histogram``: one writer needs no cell per
    thread, and a batch may be a single task. Others may read at any time; what they
    read may lag by one batch.

    Attributes:
        num_tasks: Tasks in the batches that finished.
        num_padding_rows: Rows added to reach an allowed size.
        num_failures: Batches that failed whole.
        num_retries: Batches run again because a larger one failed.
        device_s: Device time used.

    """

    __slots__ = (
        "_exec_counts",
        "_rows_counts",
        "_wait_counts",
        "_wait_total_s",
        "device_s",
        "num_failures",
        "num_padding_rows",
        "num_retries",
        "num_tasks",
    )

    def __init__(self, max_batch_rows: int) -> None:
        self.num_tasks = 0
        self.num_padding_rows = 0
        self.num_failures = 0
        self.num_retries = 0
        self.device_s = 0.0
        self._rows_counts = [0] * (max_batch_rows + 1)
        self._wait_counts = [0] * _NUM_TIMES
        self._wait_total_s = 0.0
        self._exec_counts = [0] * _NUM_TIMES

    def note(
        self,
        num_tasks: int,
        num_rows: int,
        padded_rows: int,
        wait_s: float,
        device_s: float,
    ) -> None:
        """Counts a finished batch; ``wait_s`` is what its oldest task waited."""
        self.num_tasks += num_tasks
        self._rows_counts[num_rows] += 1
        if padded_rows != num_rows:
            self.num_padding_rows += padded_rows - num_rows
        self._wait_total_s += wait_s
        self._wait_counts[bisect_left(_TIME_BOUNDS, wait_s)] += 1
        self.device_s += device_s
        self._exec_counts[bisect_left(_TIME_BOUNDS, device_s)] += 1

    @property
    def num_batches(self) -> int:
        """Batches that finished, retries included."""
        return sum(self._rows_counts)

    @property
    def num_rows(self) -> int:
        """Rows in them, without padding."""
        return sum(rows * num for rows, num in enumerate(self._rows_counts))

    def batch_rows(self) -> HistogramSnapshot:
        """Rows per batch, every size a bucket."""
        bounds = tuple(float(rows) for rows in range(len(self._rows_counts)))
        return HistogramSnapshot(bounds, (*self._rows_counts, 0), float(self.num_rows))

    def wait(self) -> HistogramSnapshot:
        """Seconds that the oldest task of each batch waited."""
        return _times(self._wait_counts, self._wait_total_s)

    def execution(self) -> HistogramSnapshot:
        """Seconds of device time per batch."""
        return _times(self._exec_counts, self.device_s)


def _times(counts: Sequence[int], total_s: float) -> HistogramSnapshot:
    return HistogramSnapshot(_TIME_BOUNDS, tuple(counts), total_s)
