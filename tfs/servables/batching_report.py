"""What batching a signature came to: numbers for a status page and for exporters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from batching.queue_stats import QueueStats
from batching.shared_queue import SharedQueue
from tfs.core import stat_names
from tfs.core.servable import InferenceTask
from tfs.core.servable_id import ServableId
from tfs.core.stats import HistogramSnapshot, Stats


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue since it was made. Immutable.

    Attributes:
        signature: Key of the signature whose requests it holds.
        input_names: The inputs they have.
        max_batch_rows: Most rows of a batch.
        allowed_rows: Sizes batches are padded to; empty for any.
        timeout_s: Longest that a request waits for a batch to fill.
        num_waiting_tasks: Requests that wait now.
        num_waiting_rows: Their rows.
        num_completed_tasks: Requests in batches that finished, well or not.
        num_failed_tasks: Of those, the ones that ended with an error of their batch.
        num_refused_tasks: Not admitted.
        num_expired_tasks: Deadline passed in the queue.
        num_cancelled_tasks: Nobody waited any more.
        num_evicted_tasks: Of low priority, gave way to others.
        num_split_tasks: Spread over several batches.
        num_batches: Batches that finished.
        num_rows: Their rows, without padding.
        num_padding_rows: Rows added.
        num_retried_batches: Batches run again to find a request at fault.
        batch_rows: Rows per batch.
        batch_fill: The same over ``max_batch_rows``.
        wait_s: Wait of each batch's oldest request.
        execution_s: Device time per batch.

    """

    signature: str
    input_names: Sequence[str]
    max_batch_rows: int
    allowed_rows: Sequence[int]
    timeout_s: float
    num_waiting_tasks: int
    num_waiting_rows: int
    num_completed_tasks: int
    num_failed_tasks: int
    num_refused_tasks: int
    num_expired_tasks: int
    num_cancelled_tasks: int
    num_evicted_tasks: int
    num_split_tasks: int
    num_batches: int
    num_rows: int
    num_padding_rows: int
    num_retried_batches: int
    batch_rows: HistogramSnapshot
    batch_fill: HistogramSnapshot
    wait_s: HistogramSnapshot
    execution_s: HistogramSnapshot


Queue = SharedQueue[InferenceTask]


def report_queue(
    signature: str, input_names: Iterable[str], queue: Queue
) -> QueueReport:
    """Returns a queue's numbers now. Thread-safe; they may lag by a batch."""
    waiting, stats = queue.waiting, queue.stats
    options = waiting.options
    return QueueReport(
        signature=signature,
        input_names=tuple(input_names),
        max_batch_rows=options.max_batch_rows,
        allowed_rows=options.allowed_rows,
        timeout_s=options.timeout_s,
        num_waiting_tasks=len(waiting),
        num_waiting_rows=waiting.num_rows,
        num_completed_tasks=stats.num_tasks,
        num_failed_tasks=stats.num_failed_tasks,
        num_refused_tasks=waiting.num_refused,
        num_expired_tasks=waiting.num_expired,
        num_cancelled_tasks=waiting.num_cancelled,
        num_evicted_tasks=waiting.num_evicted,
        num_split_tasks=waiting.num_split,
        num_batches=stats.num_batches,
        num_rows=stats.num_rows,
        num_padding_rows=stats.num_padding_rows,
        num_retried_batches=stats.num_retries,
        batch_rows=stats.batch_rows(),
        batch_fill=stats.batch_fill(),
        wait_s=stats.wait(),
        execution_s=stats.execution(),
    )


def publish(
    stats: Stats,
    servable_id: ServableId,
    signature: str,
    queues: Callable[[], Sequence[Queue]],
) -> None:
    """Registers a signature's numbers, summed over its queues whenever they are read.

    They go with ``stats.forget(model=..., version=...)``.
    """
    labels = {
        "model": servable_id.name,
        "version": str(servable_id.version),
        "signature": signature,
    }

    def gauge(name: str, read: Callable[[Queue], float], **more: str) -> None:
        stats.gauge(name, lambda: sum(map(read, queues())), **labels, **more)

    gauge(stat_names.BATCHES, lambda queue: queue.stats.num_batches)
    gauge(stat_names.BATCH_PADDING_ROWS, lambda queue: queue.stats.num_padding_rows)
    gauge(stat_names.BATCH_WAITING_ROWS, lambda queue: queue.waiting.num_rows)
    ends: dict[str, Callable[[Queue], float]] = {
        "computed": lambda queue: queue.stats.num_tasks - queue.stats.num_failed_tasks,
        "failed": lambda queue: queue.stats.num_failed_tasks,
        "refused": lambda queue: queue.waiting.num_refused,
        "expired": lambda queue: queue.waiting.num_expired,
        "cancelled": lambda queue: queue.waiting.num_cancelled,
        "evicted": lambda queue: queue.waiting.num_evicted,
    }
    for end, read in ends.items():
        gauge(stat_names.BATCH_TASKS, read, end=end)
    histograms: dict[str, Callable[[QueueStats], HistogramSnapshot]] = {
        stat_names.BATCH_ROWS: QueueStats.batch_rows,
        stat_names.BATCH_FILL: QueueStats.batch_fill,
        stat_names.BATCH_WAIT_S: QueueStats.wait,
        stat_names.BATCH_EXECUTION_S: QueueStats.execution,
    }
    for name, snapshot in histograms.items():
        stats.histogram_source(name, _summed(queues, snapshot), **labels)


def _summed(
    queues: Callable[[], Sequence[Queue]],
    snapshot: Callable[[QueueStats], HistogramSnapshot],
) -> Callable[[], HistogramSnapshot]:
    def read() -> HistogramSnapshot:
        parts = [snapshot(queue.stats) for queue in queues()]
        if not parts:
            return snapshot(QueueStats(1))
        counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
        total = sum(part.total for part in parts)
        return HistogramSnapshot(parts[0].bounds, counts, total)

    return read
