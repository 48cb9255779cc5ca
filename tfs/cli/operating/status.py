"""``tfs status`` and ``tfs models``: how a running server and its models do."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers
from tfs.cli.connection import add_admin_arguments, answer
from tfs.cli.operating.model_table import (
    models_table,
    server_lines,
    stats_table,
    versions_table,
)
from tfs.cli.printing import notes_lines, table

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def add_parser(subparsers: Subparsers) -> None:
    """Adds both commands."""
    status = subparsers.add_parser(
        "status",
        help="how a running server does",
        description="Shows the server, and one line for each model: what answers, how "
        "fast, what is on trial, what is wrong. With --batching, one line for each batch "
        "queue instead: how requests are joined, and what came of it.",
    )
    status.add_argument("--batching", action="store_true", help="show the batch queues")
    status.add_argument(
        "--stats",
        action="store_true",
        help="what is counted too: requests, connections, batches, logs",
    )
    status.set_defaults(run=_run_status)
    models = subparsers.add_parser(
        "models",
        help="versions of a running server's models",
        description="Shows one line for each version: its state, since when, its "
        "memory, and why.",
    )
    models.add_argument(
        "--stats", action="store_true", help="with histograms (JSON only)"
    )
    models.set_defaults(run=_run_models)
    for parser in (status, models):
        parser.add_argument("models", nargs="*", metavar="MODEL", help="only these")
        add_admin_arguments(parser)


def _run_status(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    batching: bool = arguments.batching
    request = pb.ListModelsRequest(
        models=arguments.models,
        include_stats=batching or arguments.stats or not arguments.json,
    )

    def lines(reply: pb.ListModelsResponse) -> Iterator[str]:
        yield from server_lines(reply.server, len(reply.models))
        if reply.models:
            yield ""
            yield (batching_table if batching else models_table)(reply.models)
        if arguments.stats:
            yield ""
            yield stats_table(reply.server.stats)
        yield from notes_lines(reply.notes)

    answer(arguments, request, pb.ListModelsResponse, lines)
    return 0


def _run_models(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ListModelsRequest(
        models=arguments.models, include_stats=arguments.stats
    )
    answer(
        arguments,
        request,
        pb.ListModelsResponse,
        lambda reply: [versions_table(reply.models)],
    )
    return 0


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
                    rows.append((*start, *["-"] * 8, batching.why or "no request yet"))
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

    found = HistogramSnapshot.merged([histogram])
    if not found.num:
        return "-"
    return f"{found.mean * 1e3:.3g}, p99 {found.quantile(0.99) * 1e3:.3g}"
