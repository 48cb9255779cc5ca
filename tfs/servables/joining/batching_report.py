"""The numbers of a version's batching, for status pages and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfs.core import stat_names
from tfs.core.batch.queue_stats import QueueStats
from tfs.core.servable_id import ServableId
from tfs.core.stats import HistogramSnapshot, Labels
from tfs.servables.joining.signature_queues import SignatureCounts, SignatureQueues


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue of a signature, present or former. Immutable, its counts aside.

    Attributes:
        input_names: The inputs of its requests.
        in_common: What they have in common that requests in other queues have not;
            empty if the signature fixes all of that.
        num_waiting_tasks: Requests that wait now.
        num_waiting_rows: Rows of these.
        counts: What was counted of the others.

    """

    input_names: Sequence[str]
    in_common: str
    num_waiting_tasks: int
    num_waiting_rows: int
    counts: QueueStats


def report_queues(queues: SignatureQueues) -> list[QueueReport]:
    """Returns the numbers of a signature's queues. Thread-safe; they may lag by a batch."""
    present = queues.by_key.copy()
    reports = []
    for key, counts in list(queues.counts.by_key.items()):
        queue = present.get(key)
        reports.append(
            QueueReport(
                queues.keys.names(key),
                queues.keys.traits(key),
                0 if queue is None else len(queue),
                0 if queue is None else queue.num_rows,
                counts,
            )
        )
    return reports


_TOTALS: Mapping[str, Callable[[QueueStats], float]] = {
    stat_names.BATCHES: lambda stats: stats.num_batches,
    stat_names.BATCH_PADDING_ROWS: lambda stats: stats.num_padding_rows,
}

_ENDS: Mapping[str, Callable[[QueueStats], float]] = {
    "computed": lambda stats: stats.num_tasks - stats.num_failed_tasks,
    "failed": lambda stats: stats.num_failed_tasks,
    "refused": lambda stats: stats.num_refused,
    "expired": lambda stats: stats.num_expired,
    "cancelled": lambda stats: stats.num_cancelled,
    "evicted": lambda stats: stats.num_evicted,
}

_PAST: Mapping[str, Callable[[SignatureCounts], float]] = {
    stat_names.BYPASS_TASKS: lambda counts: counts.num_past,
    stat_names.BYPASS_ROWS: lambda counts: counts.num_past_rows,
    stat_names.BYPASS_CALLS: lambda counts: counts.num_past_calls,
}

_HISTOGRAMS: Mapping[str, Callable[[QueueStats], HistogramSnapshot]] = {
    stat_names.BATCH_ROWS: QueueStats.batch_rows,
    stat_names.BATCH_FILL: QueueStats.batch_fill,
    stat_names.BATCH_WAIT_S: QueueStats.wait,
    stat_names.BATCH_EXECUTION_S: QueueStats.execution,
    stat_names.BATCH_DEPTH_TASKS: QueueStats.depth,
}


class BatchingStats:
    """A version's numbers, summed over each signature's queues when they are read.

    A :class:`tfs.core.stats.StatSource`: nothing is registered per number, so a thousand
    versions cost nothing until somebody looks. Thread-safe.
    """

    def __init__(
        self, servable_id: ServableId, signatures: Mapping[str, SignatureQueues]
    ) -> None:
        self._id = servable_id
        self._signatures = signatures

    def counters(self) -> Iterable[tuple[str, Labels, float]]:
        """Returns sums over each signature's queues."""
        for signature, queues in self._signatures.items():
            labels = self._labels(signature)
            total = queues.counts.total()
            present = list(queues.by_key.values())
            yield (
                stat_names.BATCH_WAITING_ROWS,
                labels,
                sum(q.num_rows for q in present),
            )
            yield stat_names.BATCH_WAITING_TASKS, labels, sum(map(len, present))
            for name, read in _TOTALS.items():
                yield name, labels, read(total)
            for end, read in _ENDS.items():
                yield (
                    stat_names.BATCH_TASKS,
                    self._labels(signature, end=end),
                    read(total),
                )
            for name, read_past in _PAST.items():
                yield name, labels, read_past(queues.counts)

    def histograms(self) -> Iterable[tuple[str, Labels, HistogramSnapshot]]:
        """Returns sums over each signature's queues, once it had a request."""
        for signature, queues in self._signatures.items():
            if queues.counts.by_key:
                total = queues.counts.total()
                for name, snapshot in _HISTOGRAMS.items():
                    yield name, self._labels(signature), snapshot(total)

    def _labels(self, signature: str, **more: str) -> Labels:
        labels = {
            "model": self._id.name,
            "version": str(self._id.version),
            "signature": signature,
            **more,
        }
        return tuple(sorted(labels.items()))
