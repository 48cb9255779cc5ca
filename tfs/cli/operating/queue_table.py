"""What batching did, as a table: one line per queue of each signature."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tfs.cli.printing import table

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def batching_table(models: Iterable[pb.ModelReport]) -> str:
    """Returns one line per batch queue, or why a signature is not batched.

    Requests that skipped a signature's queues have a line of their own.
    """
    rows: list[Sequence[object]] = []
    for model in models:
        for version in model.versions:
            for signature in version.signatures:
                batching = signature.batching
                start = (model.name, version.version, signature.name)
                if not batching.enabled:
                    rows.append((*start, *["-"] * 8, f"unbatched: {batching.why}"))
                elif not batching.queues and not batching.HasField("bypass"):
                    notes = ["no request yet", *filter(None, [batching.why])]
                    rows.append((*start, *["-"] * 8, "; ".join(notes)))
                for queue in batching.queues:
                    parameters = batching.parameters
                    most = (
                        parameters.max_execution_batch_size.value
                        or parameters.max_batch_size.value
                    )
                    rows.append((*start, *_queue_cells(queue, most, batching.why)))
                if batching.HasField("bypass"):
                    rows.append((*start, *_bypass_cells(batching.bypass)))
    heads = (
        *("MODEL", "VERSION", "SIGNATURE", "WAITING", "REQUESTS", "BATCHES", "ROWS"),
        *("FILL", "PADDING", "WAIT MS", "RUN MS", "NOTE"),
    )
    return table(heads, rows)


def _queue_cells(queue: pb.QueueStats, max_rows: int, reserve: str) -> Sequence[object]:
    computed = queue.num_rows + queue.num_padding_rows
    left = {
        "refused": queue.num_rejected_tasks,
        "late": queue.num_expired_tasks,
        "cancelled": queue.num_cancelled_tasks,
        "failed": queue.num_failed_tasks,
        "split": queue.num_split_tasks,
        "batches run again": queue.num_retried_batches,
    }
    notes = [f"{num} {what}" for what, num in left.items() if num]
    if queue.requests_in_common:
        notes.insert(0, queue.requests_in_common)
    if reserve:
        notes.append(reserve)
    return (
        queue.num_waiting_tasks,
        queue.num_completed_tasks,
        queue.num_batches,
        f"{queue.num_rows / queue.num_batches:.1f} of {max_rows}"
        if queue.num_batches
        else "-",
        _percent(queue.batch_fill.total, sum(queue.batch_fill.counts)),
        _percent(queue.num_padding_rows, computed),
        _mean_and_p99_ms(queue.wait_s),
        _mean_and_p99_ms(queue.execution_s),
        ", ".join(notes) or "-",
    )


def _bypass_cells(bypass: pb.BypassStats) -> Sequence[object]:
    mean_rows = bypass.num_rows / max(1, bypass.num_calls)
    return (
        *("-", bypass.num_requests, bypass.num_calls, f"{mean_rows:.1f}"),
        *["-"] * 4,
        "past the queues: larger than a batch, or unlike what can be joined",
    )


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _mean_and_p99_ms(histogram: pb.Histogram) -> str:
    """Returns the mean and the bound that 99 % do not exceed."""
    from tfs.core.stats import HistogramSnapshot

    found = HistogramSnapshot(
        tuple(histogram.bounds), tuple(histogram.counts), histogram.total
    )
    if not found.num:
        return "-"
    return f"{found.mean * 1e3:.3g}, p99 {found.quantile(0.99) * 1e3:.3g}"
