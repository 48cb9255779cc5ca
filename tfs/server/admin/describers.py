"""Adds what other packages know of a loaded version to its report, for AdminService."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfs.core.batch_queue_options import BatchQueueOptions
from tfs.core.errors import Code
from tfs.core.process_memory import private_bytes
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.stats import HistogramSnapshot
from tfs.handlers.request_stats import RequestFigures
from tfs.proto.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.servables.inside import processes_of
from tfs.servables.joining.batched import BatchedServable
from tfs.servables.joining.batching_report import QueueReport
from tfs.servables.placed_servable import PlacedServable
from tfs.server.admin.reports import histogram
from tfs.server.process_start import started_s

Describe = Callable[[pb.VersionReport, Servable], None]
"""Adds to a report what one package knows of a loaded version."""

NumWarmed = Callable[[ServableId], int]
"""Returns how many requests a version was warmed up with."""

FiguresOf = Callable[[str, int], Mapping[str, Sequence[RequestFigures]]]
"""Returns the counters of a model's version, by signature."""


def describe_placement(report: pb.VersionReport, servable: Servable) -> None:
    """Adds where the version runs, and why."""
    if not isinstance(servable, PlacedServable):
        return
    placement = servable.placement
    if placement is not None:
        place: Any = placement.backend.name  # the same names
        report.placement.MergeFrom(
            pb.PlacementReport(place=place, why=placement.reason)
        )
    elif servable.model is None:
        report.placement.place = pb.PlacementReport.FRONT
        report.placement.why = "its platform needs no interpreter"


def describe_interpreters(report: pb.VersionReport, servable: Servable) -> None:
    """Adds the processes that run the version, and how often one died."""
    model = servable.model if isinstance(servable, PlacedServable) else None
    if model is None:
        return
    report.placement.intra_op_threads = model.source.intra_op_threads
    processes = processes_of(model)
    if processes is None:
        report.placement.interpreters.add()
        return
    for pid in processes.pids:
        interpreter = report.placement.interpreters.add(pid=pid)
        interpreter.since_s = started_s(pid) or 0.0
    report.placement.num_crashes = processes.num_deaths
    report.placement.last_crash = processes.last_death


def describe_process_memory(report: pb.VersionReport, servable: Servable) -> None:
    """Adds the memory that each described process of the version shares with no other.

    Takes about a millisecond per process.
    """
    del servable
    for interpreter in report.placement.interpreters:
        held_bytes = private_bytes(interpreter.pid) if interpreter.pid else None
        if held_bytes is not None:
            interpreter.private_bytes = held_bytes


def describe_requests(figures: FiguresOf) -> Describe:
    """Returns a function that adds a version's requests from their counters."""

    def describe(report: pb.VersionReport, servable: Servable) -> None:
        found = figures(servable.id.name, servable.id.version)
        for signature in report.signatures:
            _fill_requests(signature.requests, found.get(signature.name, ()))

    return describe


def describe_warm_up(num_warmed: NumWarmed) -> Describe:
    """Returns a function that adds how many requests ran before a version was available."""

    def describe(report: pb.VersionReport, servable: Servable) -> None:
        report.load.num_warmup_requests = num_warmed(servable.id)

    return describe


def _fill_requests(report: pb.RequestStats, figures: Sequence[RequestFigures]) -> None:
    """Adds up the methods by which a signature was called."""
    report.SetInParent()
    for each in figures:
        report.num_in_flight += each.num_in_flight
        for code, num in each.num_by_code.items():
            report.num_requests += num
            if code is not Code.OK:
                report.num_errors_by_code[int(code)] += num
    if figures:
        first = figures[0].latency_s  # all have the same bounds
        report.latency_s.CopyFrom(
            histogram(
                HistogramSnapshot(
                    first.bounds,
                    tuple(
                        map(
                            sum,
                            zip(*(f.latency_s.counts for f in figures), strict=True),
                        )
                    ),
                    sum(f.latency_s.total for f in figures),
                )
            )
        )


def describe_profile(report: pb.VersionReport, servable: Servable) -> None:
    """Adds the measurements of the version: its load, memory and calls."""
    if not isinstance(servable, PlacedServable):
        return
    for signature in report.signatures:
        error = servable.example_errors.get(signature.name)
        signature.example_error = error.message if error else ""
    profile = servable.profile
    if profile is None:
        return
    report.code_digest = profile.code_digest
    if profile.import_s is not None:
        report.load.import_s = profile.import_s
    if profile.load_peak_bytes is not None:
        report.memory.load_peak_bytes = profile.load_peak_bytes
    peaks = [each.peak_bytes for each in profile.signatures.values() if each.peak_bytes]
    if peaks:
        report.memory.call_peak_bytes = max(peaks)
    for signature in report.signatures:
        measured = profile.signatures.get(signature.name)
        if measured is not None:
            signature.call_s_by_rows.update(measured.call_s_by_rows)


def describe_batching(report: pb.VersionReport, servable: Servable) -> None:
    """Adds which signatures are batched, and how."""
    target = _batched(servable)
    if target is None:
        parts = any("its requests are not joined" in note for note in report.notes)
        for signature in report.signatures:
            signature.batching.enabled = False
            signature.batching.why = (
                "parts of it join its requests, so they are not joined before it"
                if parts
                else "not asked for: --enable_batching"
            )
        return
    for signature in report.signatures:
        why = target.unbatched.get(signature.name, "")
        batching = signature.batching
        batching.enabled = not why
        batching.why = why or target.reserves.get(signature.name, "")
        options = target.queue_options.get(signature.name)
        if options is not None:
            _fill_parameters(batching.parameters, options)


def describe_queues(report: pb.VersionReport, servable: Servable) -> None:
    """Adds the counters of each signature's batch queues."""
    target = _batched(servable)
    if target is None:
        return
    queues: dict[str, list[QueueReport]] = {}
    for queue in target.report():
        queues.setdefault(queue.signature, []).append(queue)
    for signature in report.signatures:
        batching = signature.batching
        for queue in queues.get(signature.name, ()):
            batching.queues.append(_queue_stats(queue))
        bypass = target.bypass(signature.name)
        if bypass.num_requests:
            batching.bypass.num_requests = bypass.num_requests
            batching.bypass.num_rows = bypass.num_rows
            batching.bypass.num_calls = bypass.num_calls


def _batched(servable: Servable) -> BatchedServable | None:
    """Returns the servable that joins a version's requests; None if nothing does."""
    target = servable.target if isinstance(servable, PlacedServable) else servable
    return target if isinstance(target, BatchedServable) else None


def _fill_parameters(
    parameters: session_bundle_config_pb2.BatchingParameters,
    options: BatchQueueOptions,
) -> None:
    parameters.max_batch_size.value = options.task_rows_limit
    parameters.batch_timeout_micros.value = round(options.timeout_s * 1e6)
    parameters.max_enqueued_batches.value = max(
        1, options.rows_limit // options.max_batch_rows
    )
    parameters.allowed_batch_sizes[:] = options.allowed_rows
    parameters.enable_large_batch_splitting.value = options.splits
    if options.splits:
        parameters.max_execution_batch_size.value = options.max_batch_rows


def _queue_stats(queue: QueueReport) -> pb.QueueStats:
    num_left = (
        queue.num_refused_tasks
        + queue.num_expired_tasks
        + queue.num_cancelled_tasks
        + queue.num_evicted_tasks
    )
    return pb.QueueStats(
        input_names=queue.input_names,
        requests_in_common=queue.in_common,
        num_waiting_tasks=queue.num_waiting_tasks,
        num_waiting_rows=queue.num_waiting_rows,
        num_tasks=queue.num_waiting_tasks + queue.num_completed_tasks + num_left,
        num_completed_tasks=queue.num_completed_tasks - queue.num_failed_tasks,
        num_rejected_tasks=queue.num_refused_tasks + queue.num_evicted_tasks,
        num_expired_tasks=queue.num_expired_tasks,
        num_cancelled_tasks=queue.num_cancelled_tasks,
        num_failed_tasks=queue.num_failed_tasks,
        num_split_tasks=queue.num_split_tasks,
        num_batches=queue.num_batches,
        num_rows=queue.num_rows,
        num_padding_rows=queue.num_padding_rows,
        num_retried_batches=queue.num_retried_batches,
        batch_rows=histogram(queue.batch_rows),
        batch_fill=histogram(queue.batch_fill),
        wait_s=histogram(queue.wait_s),
        execution_s=histogram(queue.execution_s),
        depth_tasks=histogram(queue.depth_tasks),
    )
