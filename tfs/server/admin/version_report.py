"""One version as a message: its state, its load, where it runs, how it batches.

Each part is read where it is known: the state from the monitor, the load from the manager,
the rest from the loaded version itself.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from managers.versions.version import LoadStatus
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.errors import Code, Quarantined
from tfs.core.process_memory import private_bytes
from tfs.core.resources import MAIN, PEAK_RAM_BYTES, RAM_BYTES, Resource
from tfs.core.servable import Servable
from tfs.core.servable_state import ManagerState, ServableState
from tfs.handlers.limits.request_stats import RequestFigures
from tfs.proto.tensorflow_serving.servables.tensorflow import session_bundle_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.process.process_model import ProcessModel
from tfs.servables.joining.batched import BatchedServable, QueueReport
from tfs.servables.loaded_version import LoadedVersion
from tfs.server.messages import fill_error, histogram
from tfs.server.system.processes import started_s

FiguresOf = Callable[[str, int], Mapping[str, Sequence[RequestFigures]]]
"""Returns the counters of a model's version, by signature."""

_AT_REST: Final = (ManagerState.AVAILABLE, ManagerState.END)


def version_report(state: ServableState, path: str = "") -> pb.VersionReport:
    """Returns a report of what the monitor knows of a version."""
    report = pb.VersionReport(
        version=state.id.version,
        state=state.manager_state.value,  # type: ignore[arg-type]  # same numbers
        reason=state.reason,
        since_s=state.since_s,
        path=path,
    )
    if state.error is not None:
        fill_error(report.error, state.error)
        report.quarantined = isinstance(state.error, Quarantined)
    if state.note:
        report.notes.append(state.note)
        if state.manager_state not in _AT_REST:
            report.load.waiting = state.note
    if state.resident_bytes is not None and state.manager_state is not ManagerState.END:
        report.memory.resident_bytes = state.resident_bytes
    return report


def fill_load(
    report: pb.VersionReport, status: LoadStatus, now_s: float, wall_s: float
) -> None:
    """Adds how a version's load is going; ``now_s`` and ``wall_s`` are the same moment."""
    report.load.num_retries = status.num_failures
    if status.duration_s is not None:
        report.load.duration_s = status.duration_s
    if status.reserved is not None:
        reserved = status.reserved
        report.memory.reserved_bytes = (
            reserved[Resource(MAIN, RAM_BYTES, 0)]
            + reserved[Resource(MAIN, PEAK_RAM_BYTES, 0)]
        )
    waiting = _waiting(report, status, now_s)
    if status.next_attempt_s is not None:
        report.load.next_attempt_s = wall_s + status.next_attempt_s - now_s
    if waiting:
        report.load.waiting = waiting
        report.notes.append(waiting)


def _waiting(report: pb.VersionReport, status: LoadStatus, now_s: float) -> str:
    """Returns what a load waits for, for people; "" if for nothing."""
    if status.next_attempt_s is None:
        return "waits for memory that others hold" if status.is_deferred else ""
    pause_s = max(0.0, status.next_attempt_s - now_s)
    if report.quarantined:
        return f"it is tried again in {pause_s:.0f} s"
    if report.state == ManagerState.END.value:
        return (
            f"attempt {status.num_failures} failed; for the next one, in {pause_s:.0f} "
            "s, what serves meanwhile is unloaded"
        )
    return (
        f"attempt {status.num_failures} failed: {status.error}; the next one is in "
        f"{pause_s:.1f} s"
    )


def fill_loaded(report: pb.VersionReport, servable: Servable) -> None:
    """Adds what a loaded version says of itself."""
    for name in sorted(servable.signatures):
        method = servable.signatures[name].method.value
        report.signatures.add(name=name, method=method)
    if isinstance(servable, LoadedVersion):
        _fill_placement(report.placement, servable)
        _fill_measured(report, servable)
    _fill_batching(report, servable)


def fill_stats(
    report: pb.VersionReport, servable: Servable, figures: FiguresOf
) -> None:
    """Adds counters, and memory by process, to a report that ``fill_loaded`` filled.

    Takes about a millisecond per process.
    """
    for interpreter in report.placement.interpreters:
        held_bytes = private_bytes(interpreter.pid) if interpreter.pid else None
        if held_bytes is not None:
            interpreter.private_bytes = held_bytes
    _fill_queues(report, servable)
    found = figures(servable.id.name, servable.id.version)
    for signature in report.signatures:
        _fill_requests(signature.requests, found.get(signature.name, ()))


def _fill_placement(report: pb.PlacementReport, servable: LoadedVersion) -> None:
    """Adds where the version runs and why, its processes, and how often one died."""
    placement, model = servable.placement, servable.model
    if placement is not None:
        place: Any = placement.backend.name  # the same names
        report.MergeFrom(pb.PlacementReport(place=place, why=placement.reason))
    elif model is None:
        report.place = pb.PlacementReport.FRONT
        report.why = "its platform needs no interpreter"
    if model is None:
        return
    report.intra_op_threads = model.source.intra_op_threads
    if not isinstance(model, ProcessModel):
        report.interpreters.add()
        return
    for pid in model.pids:
        report.interpreters.add(pid=pid, since_s=started_s(pid) or 0.0)
    report.num_crashes = model.num_deaths
    report.last_crash = model.last_death


def _fill_measured(report: pb.VersionReport, servable: LoadedVersion) -> None:
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


def _fill_batching(report: pb.VersionReport, servable: Servable) -> None:
    """Adds which signatures are batched, and how."""
    target = _batched(servable)
    staged = _staged_status(servable)
    for signature in report.signatures:
        batching = signature.batching
        if staged is not None:
            batching.enabled = True
            batching.why = (
                f"in stages, by the rule {staged.rule}: {staged.num_joined} requests "
                f"joined a running batch; {staged.gain:+.1%} of the mean latency gained "
                "against greedy by simulation"
            )
            continue
        if target is None:
            batching.enabled = False
            if not isinstance(servable, LoadedVersion):
                batching.why = "its platform takes requests one by one"
            elif servable.is_joined_by_parts:
                batching.why = (
                    "parts of it join its requests, so they are not joined before it"
                )
            else:
                batching.why = "not asked for: --enable_batching"
            continue
        why = target.unbatched.get(signature.name, "")
        batching.enabled = not why
        batching.why = why or target.reserves.get(signature.name, "")
        options = target.queue_options.get(signature.name)
        if options is not None:
            _fill_parameters(batching.parameters, options)


def _fill_queues(report: pb.VersionReport, servable: Servable) -> None:
    target = _batched(servable)
    if target is None:
        return
    for signature in report.signatures:
        batching = signature.batching
        batching.queues.extend(map(_queue_stats, target.report(signature.name)))
        counts = target.counts(signature.name)
        if counts.num_past:
            batching.bypass.num_requests = counts.num_past
            batching.bypass.num_rows = counts.num_past_rows
            batching.bypass.num_calls = counts.num_past_calls


def _staged_status(servable: Servable) -> AutoStatus | None:
    """Returns what joining between stages was worth; None if that is not done."""
    model = servable.model if isinstance(servable, LoadedVersion) else None
    return None if model is None else model.staged_status


def _batched(servable: Servable) -> BatchedServable | None:
    return servable.queues if isinstance(servable, LoadedVersion) else None


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
    counts, num_waiting = queue.counts, queue.num_waiting_tasks
    num_rejected = counts.num_refused + counts.num_evicted
    num_left = num_rejected + counts.num_expired + counts.num_cancelled
    return pb.QueueStats(
        input_names=queue.input_names,
        requests_in_common=queue.in_common,
        num_waiting_tasks=num_waiting,
        num_waiting_rows=queue.num_waiting_rows,
        num_tasks=num_waiting + counts.num_tasks + num_left,
        num_completed_tasks=counts.num_tasks - counts.num_failed_tasks,
        num_rejected_tasks=num_rejected,
        num_expired_tasks=counts.num_expired,
        num_cancelled_tasks=counts.num_cancelled,
        num_failed_tasks=counts.num_failed_tasks,
        num_split_tasks=counts.num_split,
        num_batches=counts.num_batches,
        num_rows=counts.num_rows,
        num_padding_rows=counts.num_padding_rows,
        num_retried_batches=counts.num_retries,
        batch_rows=histogram(counts.batch_rows()),
        batch_fill=histogram(counts.batch_fill()),
        wait_s=histogram(counts.wait()),
        execution_s=histogram(counts.execution()),
        depth_tasks=histogram(counts.depth()),
    )


def _fill_requests(report: pb.RequestStats, figures: Sequence[RequestFigures]) -> None:
    """Adds up the methods by which a signature was called."""
    report.SetInParent()
    if not figures:
        return
    found = functools.reduce(operator.add, figures)
    report.num_in_flight = found.num_in_flight
    for code, num in found.num_by_code.items():
        report.num_requests += num
        if code is not Code.OK:
            report.num_errors_by_code[int(code)] += num
    report.latency_s.CopyFrom(histogram(found.latency_s))
