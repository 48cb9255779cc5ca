"""The numbers of a version's batching, for status pages and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from batching.batching_options import BatchingOptions, recommended_options
from batching.cost_table import CostTable
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core import stat_names
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.batch.queue_stats import QueueStats, SignatureCounts
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.stats import HistogramSnapshot, Labels, Stats
from tfs.core.version.model_profile import ModelProfile, SignatureProfile, row_limit
from tfs.servables.joining.signature_queues import SignatureQueues
from tfs.servables.joining.tensor_join import joined_row_bytes, with_joining


class BatchedServable:
    """A servable that computes requests together. Thread-safe; a ``Servable``.

    Args:
        inner: Computes the batches; keeps the promises of a servable.
        scheduler: The scheduler of the device that ``inner`` runs on, confined to
            ``loop``.
        loop: The thread that steps the scheduler.
        options: How to batch; None follows the measurements of each signature.
        profile: What was measured of this version; None if nothing was.
        stats: The registry of the counts; None publishes none.
        max_in_flight: Most batches of a queue handed to ``inner`` at a time, if the
            options do not say; None allows as many as the scheduler's device takes.

    Attributes:
        unbatched: Why a signature is not batched, by key; for the version's status.
        reserves: Reservations about signatures that are batched, by key: that only
            equal lengths are joined, or that their rows were not shown to be
            independent.

    """

    def __init__(
        self,
        inner: Servable,
        scheduler: SharedBatchScheduler,
        loop: ServingLoop,
        options: BatchingOptions | None = None,
        profile: ModelProfile | None = None,
        stats: Stats | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        self._inner = inner
        self._loop = loop
        measured = profile.signatures if profile is not None else {}
        batches_unproven = options is not None and options.batches_unproven
        unbatched: dict[str, str] = {}
        self._batched: dict[str, SignatureQueues] = {}
        for name, signature in inner.signatures.items():
            found = measured.get(name, SignatureProfile())
            why = _why_not(signature, found, batches_unproven)
            if why:
                unbatched[name] = why
            else:
                self._batched[name] = SignatureQueues(
                    name,
                    signature,
                    inner,
                    scheduler,
                    loop,
                    _bounded(
                        options
                        or recommended_options(
                            CostTable(with_joining(found.call_s_by_rows, signature)),
                            row_bytes=joined_row_bytes(signature),
                        ),
                        max_in_flight,
                        row_limit(signature, found),
                    ),
                    found,
                    takes_any_size=options is None,
                )
        self.unbatched: Mapping[str, str] = unbatched
        self.reserves: Mapping[str, str] = {
            name: reserve
            for name in self._batched
            if (reserve := _reserve(measured.get(name, SignatureProfile())))
        }
        self._stats = stats
        self._numbers = BatchingStats(inner.id, self._batched)
        if stats is not None:
            stats.add_source(self._numbers)

    @property
    def id(self) -> ServableId:
        """The version."""
        return self._inner.id

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key."""
        return self._inner.signatures

    def submit(self, task: InferenceTask) -> None:
        """Queues the task, or hands it on if it cannot be batched."""
        queues = self._batched.get(task.signature_name)
        if queues is None:
            self._inner.submit(task)
        elif self._loop.is_loop_thread:
            queues.submit(task)
        else:
            self._loop.post(lambda: queues.submit(task))

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Queues tasks of one form at once. On the loop."""
        queues = self._batched.get(tasks[0].signature_name)
        if queues is None:
            self._inner.submit_all(tasks)
        else:
            queues.submit_all(tasks)

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        """Computes requests as a batch of their own, bypassing queues that are idle.

        On the loop. Returns None, with nothing done, if they have to be queued.
        """
        queues = self._batched.get(signature_name)
        if queues is None:
            return self._inner.compute_now(
                signature_name, make_inputs, num_rows, num_tasks
            )
        return queues.compute_now(make_inputs, num_rows, num_tasks)

    @property
    def queue_options(self) -> Mapping[str, BatchQueueOptions]:
        """The options of the queues of each signature."""
        return {name: queues.queue_options for name, queues in self._batched.items()}

    @property
    def staged_rows(self) -> Mapping[str, int]:
        """Most rows of a batch, by signature that may be computed in stages, if asked for.

        No more than pay by the times that were measured.
        """
        return {
            name: min(queues.queue_options.max_batch_rows, queues.worthwhile_rows)
            for name, queues in self._batched.items()
            if queues.in_stages
        }

    def report(self, signature_name: str) -> Sequence[QueueReport]:
        """Returns the numbers of a signature's queues. Thread-safe."""
        queues = self._batched.get(signature_name)
        return () if queues is None else report_queues(queues)

    def counts(self, signature_name: str) -> SignatureCounts:
        """Returns what is counted of a signature; may be read on any thread."""
        queues = self._batched.get(signature_name)
        return SignatureCounts() if queues is None else queues.counts

    def continue_counts(self, former: BatchedServable) -> None:
        """Counts on where other queues of this version stop, which publish no more.

        To be called before the first request. Any thread.
        """
        former._unpublish()
        for name, queues in self._batched.items():
            if name in former._batched:
                queues.counts = former._batched[name].counts

    def _unpublish(self) -> None:
        if self._stats is not None:
            self._stats.remove_source(self._numbers)

    def close(self, on_drained: Callable[[], None] | None = None) -> None:
        """Answers new requests with UNAVAILABLE and computes those that wait.

        Returns at once; idempotent except for the callback. ``on_drained`` runs on the
        loop when none of its requests is left there. Its numbers are no longer published.
        """
        self._unpublish()

        def drain() -> None:
            batched = list(self._batched.values())
            left = [len(batched)]

            def one_less() -> None:
                left[0] -= 1
                if not left[0] and on_drained is not None:
                    on_drained()

            if not batched and on_drained is not None:
                on_drained()
            for queues in batched:
                queues.close(one_less)

        if self._loop.is_loop_thread:
            drain()
        else:
            self._loop.post(drain)

    def __repr__(self) -> str:
        return f"<BatchedServable {self.id.slashed}>"


def _why_not(
    signature: Signature, measured: SignatureProfile, batches_unproven: bool
) -> str:
    """Returns why a signature must not be batched; empty if it may."""
    if not signature.batched:
        return "the signature says batched: false"
    if measured.rows_independent is False:
        why = measured.why_dependent or "they changed with their neighbours"
        return f"its rows depend on each other: {why}"
    if measured.rows_independent is None and not batches_unproven:
        why = measured.why_dependent
        return "its rows were not shown to be independent" + (why and f": {why}")
    return ""


def _reserve(measured: SignatureProfile) -> str:
    """Returns the reservation about a signature, see ``reserves``; empty for most."""
    if measured.rows_independent is None:
        return (
            "as its own parameters ask; nothing showed its rows to be independent, for "
            "nothing is measured"
        )
    if measured.why_padding:
        return f"only equal lengths are joined: padded, {measured.why_padding}"
    return ""


def _bounded(
    options: BatchingOptions, max_in_flight: int | None, max_rows: int | None
) -> BatchingOptions:
    """Returns options whose queues keep to what the device and the model take."""
    if max_rows is not None:
        options = options.bounded(max_rows)
    if options.policy.max_in_flight is not None:
        return options
    bounds = [n for n in (options.num_batch_threads, max_in_flight) if n is not None]
    if not bounds:
        return options
    return replace(options, policy=replace(options.policy, max_in_flight=min(bounds)))


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
