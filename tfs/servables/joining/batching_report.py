"""The numbers of a signature's batching, for status pages and metrics."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.core import stat_names
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.queue_stats import QueueStats
from tfs.core.dtype import DType
from tfs.core.servable import InferenceTask
from tfs.core.servable_id import ServableId
from tfs.core.signature import FREE, Signature
from tfs.core.stats import HistogramSnapshot, Labels

ANY_LENGTH: Final = -1
"""A size that requests of a queue need not have in common."""

_CODES: Final = {
    "float16": "e", "float32": "f", "float64": "d", "bool": "?",
    "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip
_MAX_VALUES: Final = 4
_MAX_CHARS: Final = 24


@dataclass(slots=True)
class BypassCount:
    """Requests that bypassed a signature's queues. Written on the loop, read anywhere.

    Attributes:
        num_requests: Requests that were larger than a batch, fitted no queue or had no
            rows; counted when they come.
        num_rows: Rows of these tasks.
        num_calls: Calls of the servable that were made for them.

    """

    num_requests: int = 0
    num_rows: int = 0
    num_calls: int = 0

    def note(self, num_rows: int) -> None:
        """Counts a request; its calls are counted as they are made."""
        self.num_requests += 1
        self.num_rows += num_rows

    def add(self, other: BypassCount) -> None:
        """Adds the counts of another one."""
        self.num_requests += other.num_requests
        self.num_rows += other.num_rows
        self.num_calls += other.num_calls


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue since it was made. Immutable.

    Attributes:
        signature: Key of the signature whose requests it holds.
        input_names: The inputs they have.
        in_common: What they have in common that requests in other queues have not;
            empty if the signature fixes all of that.
        max_batch_rows: Most rows of a batch.
        allowed_rows: Sizes batches are padded to; empty for any.
        timeout_s: Longest that a request waits for a batch to fill.
        num_waiting_tasks: Requests that wait now.
        num_waiting_rows: Rows of the tasks that wait.
        num_completed_tasks: Requests in batches that finished, well or not.
        num_failed_tasks: How many of those ended with an error of their batch.
        num_refused_tasks: Requests that were not admitted.
        num_expired_tasks: Requests whose deadline passed in the queue.
        num_cancelled_tasks: Requests that were cancelled in the queue.
        num_evicted_tasks: Requests of low priority that gave way to others.
        num_split_tasks: Requests that were spread over several batches.
        num_batches: Batches that finished.
        num_rows: Rows of the tasks, without padding.
        num_padding_rows: Rows added.
        num_retried_batches: Batches run again to find a request at fault.
        batch_rows: Rows per batch.
        batch_fill: The same over ``max_batch_rows``.
        wait_s: How long each batch's oldest request waited.
        execution_s: Device time per batch.
        depth_tasks: Requests that waited when a batch ended.

    """

    signature: str
    input_names: Sequence[str]
    in_common: str
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
    depth_tasks: HistogramSnapshot


Queue = BatchQueue[InferenceTask]


def report_queue(
    signature: str, input_names: Iterable[str], in_common: str, queue: Queue
) -> QueueReport:
    """Returns a queue's numbers now. Thread-safe; they may lag by a batch."""
    options, stats = queue.options, queue.stats
    return QueueReport(
        signature=signature,
        input_names=tuple(input_names),
        in_common=in_common,
        max_batch_rows=options.max_batch_rows,
        allowed_rows=options.allowed_rows,
        timeout_s=options.timeout_s,
        num_waiting_tasks=len(queue),
        num_waiting_rows=queue.num_rows,
        num_completed_tasks=stats.num_tasks,
        num_failed_tasks=stats.num_failed_tasks,
        num_refused_tasks=queue.num_refused,
        num_expired_tasks=queue.num_expired,
        num_cancelled_tasks=queue.num_cancelled,
        num_evicted_tasks=queue.num_evicted,
        num_split_tasks=queue.num_split,
        num_batches=stats.num_batches,
        num_rows=stats.num_rows,
        num_padding_rows=stats.num_padding_rows,
        num_retried_batches=stats.num_retries,
        batch_rows=stats.batch_rows(),
        batch_fill=stats.batch_fill(),
        wait_s=stats.wait(),
        execution_s=stats.execution(),
        depth_tasks=stats.depth(),
    )


_GAUGES: Mapping[str, Callable[[Queue], float]] = {
    stat_names.BATCHES: lambda queue: queue.stats.num_batches,
    stat_names.BATCH_PADDING_ROWS: lambda queue: queue.stats.num_padding_rows,
    stat_names.BATCH_WAITING_ROWS: lambda queue: queue.num_rows,
    stat_names.BATCH_WAITING_TASKS: lambda queue: len(queue),
}

_BYPASS: Mapping[str, Callable[[BypassCount], float]] = {
    stat_names.BYPASS_TASKS: lambda bypass: bypass.num_requests,
    stat_names.BYPASS_ROWS: lambda bypass: bypass.num_rows,
    stat_names.BYPASS_CALLS: lambda bypass: bypass.num_calls,
}

_ENDS: Mapping[str, Callable[[Queue], float]] = {
    "computed": lambda queue: queue.stats.num_tasks - queue.stats.num_failed_tasks,
    "failed": lambda queue: queue.stats.num_failed_tasks,
    "refused": lambda queue: queue.num_refused,
    "expired": lambda queue: queue.num_expired,
    "cancelled": lambda queue: queue.num_cancelled,
    "evicted": lambda queue: queue.num_evicted,
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

    Requests that bypassed the queues are counted apart. A
    :class:`tfs.core.stats.StatSource`: nothing is registered per number, so a thousand
    versions cost nothing until somebody looks. Thread-safe.
    """

    def __init__(
        self,
        servable_id: ServableId,
        queues_by_signature: Mapping[str, Callable[[], Sequence[Queue]]],
        bypass_by_signature: Mapping[str, Callable[[], BypassCount]],
    ) -> None:
        self._id = servable_id
        self._queues = queues_by_signature
        self._bypass = bypass_by_signature

    def counters(self) -> Iterable[tuple[str, Labels, float]]:
        """Returns sums over each signature's queues."""
        for signature, queues_now in self._queues.items():
            queues = queues_now()
            for name, read in _GAUGES.items():
                yield name, self._labels(signature), sum(map(read, queues))
            for end, read in _ENDS.items():
                labels = self._labels(signature, end=end)
                yield stat_names.BATCH_TASKS, labels, sum(map(read, queues))
            bypass = self._bypass[signature]()
            for name, read_bypass in _BYPASS.items():
                yield name, self._labels(signature), read_bypass(bypass)

    def histograms(self) -> Iterable[tuple[str, Labels, HistogramSnapshot]]:
        """Returns sums over each signature's queues, once it had a request."""
        for signature, queues_now in self._queues.items():
            queues = queues_now()
            if not queues:
                continue
            for name, snapshot in _HISTOGRAMS.items():
                parts = [snapshot(queue.stats) for queue in queues]
                yield name, self._labels(signature), _summed(parts)

    def _labels(self, signature: str, **more: str) -> Labels:
        labels = {
            "model": self._id.name,
            "version": str(self._id.version),
            "signature": signature,
            **more,
        }
        return tuple(sorted(labels.items()))


def _summed(parts: Sequence[HistogramSnapshot]) -> HistogramSnapshot:
    # A queue may have more bounds than others if it continues the counts of one with
    # larger batches.
    bounds = max((part.bounds for part in parts), key=len)
    counts = [0] * (len(bounds) + 1)
    for part in parts:
        for bound, count in zip((*part.bounds, None), part.counts, strict=True):
            counts[-1 if bound is None else bounds.index(bound)] += count
    return HistogramSnapshot(bounds, tuple(counts), sum(p.total for p in parts))


def traits_of(key: object, signature: Signature) -> str:
    """Returns in words what a key of ``SignatureQueues`` says; "" if it says nothing.

    Inputs of which all requests have the same are not named.
    """
    if not isinstance(key, frozenset):
        return ""
    return ", ".join(sorted(filter(None, _traits(key, signature))))


def _traits(key: frozenset[object], signature: Signature) -> Iterator[str]:
    for part in key:
        match part:
            case (str(name), None):
                yield f"{name} left out"
            case (str(name), sizes, data) if isinstance(sizes, tuple):
                yield f"{name} = {_values(signature.inputs[name].dtype, data)}"
            case (str(name), sizes) if isinstance(sizes, tuple):
                spec = signature.inputs[name]
                if FREE in spec.shape[1:] or name in signature.defaults:
                    yield f"{name} [{', '.join(map(_size, sizes))}]"


def _size(size: int) -> str:
    return "any" if size == ANY_LENGTH else str(size)


def _values(dtype: DType, data: object) -> str:
    values: Sequence[object]
    if isinstance(data, tuple):
        values = [bytes(each).decode(errors="replace") for each in data[:_MAX_VALUES]]
        num = len(data)
    else:
        assert isinstance(data, bytes)
        code = _CODES.get(dtype.name)
        if code is None:
            return _short(data.hex())
        num = len(data) // dtype.item_bytes
        kept = data[: _MAX_VALUES * dtype.item_bytes]
        values = struct.unpack(f"<{len(kept) // dtype.item_bytes}{code}", kept)
    texts = [f"{v:.6g}" if isinstance(v, float) else _short(str(v)) for v in values]
    return " ".join([*texts, "..."] if num > _MAX_VALUES else texts)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
