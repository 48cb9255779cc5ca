"""The running state as messages of tfs.v1: reads snapshots, changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from google.protobuf import text_format

from managers.load_status import LoadStatus
from managers.resource_tracker import ResourceTracker
from tfs.core.errors import Quarantined, ServingError
from tfs.core.resources import MAIN, PEAK_RAM_BYTES, RAM_BYTES, Resource
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import HistogramSnapshot, Stats
from tfs.proto._pool import POOL
from tfs.proto.google.rpc import status_pb2
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.label_reports import label_words
from tfs.server.canary.comparison import Figures
from tfs.server.canary.trial_counts import TrialRecord
from tfs.server.config.config_in_force import Refusal
from tfs.server.config.config_outcome import ConfigOutcome, ModelOutcome
from tfs.server.config.overrides import Override
from tfs.server.config.running_config import Base, RunningConfig
from tfs.server.config.server_config import config_text


def fill_error(status: status_pb2.Status, error: ServingError | None) -> None:
    """Writes a status; None is OK."""
    status.SetInParent()
    if error is not None:
        status.code = int(error.code)
        status.message = error.message


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
    if status.is_deferred:
        report.notes.append("waits for memory that others hold")
    if status.next_attempt_s is not None:
        report.load.next_attempt_s = wall_s + status.next_attempt_s - now_s
        pause_s = max(0.0, status.next_attempt_s - now_s)
        if report.quarantined:
            report.notes.append(f"it is tried again in {pause_s:.0f} s")
        elif report.state == ManagerState.END.value:
            report.notes.append(
                f"attempt {status.num_failures} failed; for the next one, in "
                f"{pause_s:.0f} s, what serves meanwhile is unloaded"
            )
        else:
            report.notes.append(
                f"attempt {status.num_failures} failed: {status.error}; the next one "
                f"is in {pause_s:.1f} s"
            )


def canary_report(
    record: TrialRecord,
    running: RunningConfig,
    name: str,
    primary: int | None,
    states: Sequence[ServableState],
) -> pb.CanaryReport:
    """Returns the state of a trial; ``states`` are those of the model's versions."""
    version = record.settings.version
    report = pb.CanaryReport(since_s=record.since_s)
    model = running.model_message(name)
    if model is not None:
        report.canary.CopyFrom(model.traffic.canary)
    if primary is not None and primary != version:
        report.primary = primary
    if record.rejected:
        report.phase = pb.CanaryReport.REJECTED
        report.reason = record.rejected
    elif hindrance := _hindrance(version, states):
        report.phase = pb.CanaryReport.WAITING
        report.reason = hindrance
    elif primary is None or primary == version:
        report.phase = pb.CanaryReport.WAITING
        report.reason = f"no version but {version} is available to compare with"
    else:
        report.phase = pb.CanaryReport.RUNNING
    report.total.CopyFrom(comparison(record.total))
    for signature, figures in record.by_signature.items():
        report.by_signature[signature].CopyFrom(comparison(figures))
    for limit in record.limits:
        guard = report.guards.add(
            name=limit.name, limit=limit.limit, exceeded=limit.is_exceeded
        )
        if limit.value is not None:
            guard.value = limit.value
    report.num_teed_requests = record.num_teed
    report.num_dropped_tees = record.num_dropped
    report.num_split_to_primary = record.num_split_to_primary
    report.num_split_to_canary = record.num_split_to_canary
    return report


def fill_latencies(report: pb.CanaryReport, record: TrialRecord) -> None:
    """Adds how long primary and canary took to answer, as histograms."""
    _fill_latencies(report.total, record.total)
    for signature, figures in record.by_signature.items():
        _fill_latencies(report.by_signature[signature], figures)


def _fill_latencies(report: pb.Comparison, figures: Figures) -> None:
    if figures.primary_s is not None and figures.canary_s is not None:
        report.primary_latency_s.CopyFrom(histogram(figures.primary_s))
        report.canary_latency_s.CopyFrom(histogram(figures.canary_s))


def _hindrance(version: int, states: Sequence[ServableState]) -> str:
    """Returns why a version cannot be requested; "" if it can."""
    state = next((each for each in states if each.id.version == version), None)
    if state is not None and state.manager_state is ManagerState.AVAILABLE:
        return ""
    if state is not None and state.error is not None:
        return f"version {version} is not available: {state.error.message}"
    return f"version {version} is not available yet"


def comparison(figures: Figures) -> pb.Comparison:
    """Returns figures without latencies; those that were not measured are absent."""
    report = pb.Comparison(
        num_requests=figures.num_pairs,
        num_rows=figures.num_rows,
        num_incomparable=figures.num_incomparable,
    )
    for field in (
        "max_abs_diff",
        "mean_abs_diff",
        "top1_disagreement",
        "primary_error_rate",
        "canary_error_rate",
        "latency_ratio",
    ):
        value = getattr(figures, field)
        if value is not None:
            setattr(report, field, value)
    return report


def histogram(snapshot: HistogramSnapshot) -> pb.Histogram:
    """Returns a histogram as a message."""
    return pb.Histogram(
        bounds=snapshot.bounds, counts=snapshot.counts, total=snapshot.total
    )


def stats_report(stats: Stats) -> list[pb.Stat]:
    """Returns every counter, gauge and histogram, by name and labels."""
    reports = [
        pb.Stat(name=name, labels=dict(labels), value=value)
        for name, labels, value in stats.counters()
    ]
    reports += [
        pb.Stat(name=name, labels=dict(labels), histogram=histogram(snapshot))
        for name, labels, snapshot in stats.histograms()
    ]
    return sorted(reports, key=lambda stat: (stat.name, sorted(stat.labels.items())))


def base_report(base: Base) -> pb.BaseReport:
    """Returns where the base came from, and its contents."""
    return pb.BaseReport(
        origin=base.origin.value,  # type: ignore[arg-type]  # same numbers
        path=base.path,
        since_s=base.since_s,
        survives_restart=base.origin.survives_restart,
        config=base.config.message,
        text=config_text(base.config.message),
    )


def override_report(
    running: RunningConfig, name: str, override: Override, is_persisted: bool
) -> pb.OverrideReport:
    """Returns an override, and whether it is in force."""
    return pb.OverrideReport(
        config=override.config,
        active=name in running.active,
        why_inactive=running.why_inactive.get(name, ""),
        made_by=override.made_by,
        since_s=override.since_s,
        persisted=is_persisted,
    )


def refusal_report(refusal: Refusal) -> pb.RefusalReport:
    """Returns a config that was not accepted."""
    report = pb.RefusalReport(
        origin=refusal.origin.value,  # type: ignore[arg-type]  # same numbers
        path=refusal.path,
        at_s=refusal.at_s,
    )
    fill_error(report.error, refusal.error)
    return report


def apply_reply(outcome: ConfigOutcome) -> pb.ApplyConfigResponse:
    """Returns the outcome of a config, model by model."""
    reply = pb.ApplyConfigResponse(applied=outcome.is_applied, notes=outcome.notes)
    fill_error(reply.status, outcome.error)
    for each in outcome.models:
        reply.models.append(_model_outcome(each))
    return reply


def _model_outcome(outcome: ModelOutcome) -> pb.ModelOutcome:
    report = pb.ModelOutcome(
        model=outcome.change.name,
        change=outcome.change.change.value,  # type: ignore[arg-type]  # same numbers
        changed_fields=outcome.change.fields,
        available_versions=outcome.available,
        pending_versions=outcome.pending,
        overridden=outcome.change.is_overridden,
    )
    fill_error(report.status, outcome.error)
    return report


def effective_text(
    running: RunningConfig,
    models: Sequence[pb.ModelReport],
    memory: ResourceTracker | None = None,
) -> str:
    """Returns the running config as a config file, its state as comments.

    Loading it as a config file changes nothing.

    Args:
        running: The config.
        models: The reports of its models.
        memory: How much memory they may use together, and use; None: no limit.

    """
    by_name = {model.name: model for model in models}
    base = running.base
    origin = base.origin.name.lower().replace("_", " ")
    lines = [
        f"# Base: {origin}{f' {base.path}' if base.path else ''}, since "
        f"{when(base.since_s)}.",
    ]
    if memory is not None:
        used, total = memory_bytes(memory)
        lines.append(
            f"# Models may use {_mebibytes(total)}, of which {_mebibytes(used)} are "
            "reserved."
        )
    lines.append("model_config_list {")
    for model in running.effective.message.model_config_list.config:
        lines += [f"  # {_plain(line)}" for line in _comments(by_name, model.name)]
        override = running.overrides.get(model.name)
        if override is not None and model.name in running.active:
            made_by = override.made_by or "somebody"
            lines.append(
                f"  # overridden by {_plain(made_by)} since {when(override.since_s)}"
            )
        text = text_format.MessageToString(model, descriptor_pool=POOL)
        lines.append("  config {")
        lines += [f"    {line}" for line in text.splitlines()]
        lines.append("  }")
    return "\n".join((*lines, "}", ""))


def _comments(by_name: Mapping[str, pb.ModelReport], name: str) -> list[str]:
    model = by_name.get(name)
    if model is None:
        return [name]
    primary = model.primary if model.HasField("primary") else "none"
    lines = [f"{name}: primary {primary}"]
    for label in model.labels:
        now = label.version if label.HasField("version") else "nothing yet"
        later = label_words(label, model.versions)
        lines.append(f"label {label.label}: {now}{f' ({later})' if later else ''}")
    if model.HasField("canary"):
        canary = model.canary
        phase = pb.CanaryReport.Phase.Name(canary.phase)
        lines.append(f"canary {canary.canary.version}: {phase} {canary.reason}".strip())
    if model.HasField("error"):
        lines.append(f"problem: {model.error.message}")
    for version in model.versions:
        state = ManagerState(version.state).name
        memory = "".join(f", {each}" for each in _memory(version.memory))
        error = f", {version.error.message}" if version.HasField("error") else ""
        lines.append(
            f"version {version.version}: {state} since {when(version.since_s)} "
            f"({version.reason}){memory}{error}"
        )
    return lines


def _memory(memory: pb.MemoryReport) -> Iterator[str]:
    """Yields how much memory a version takes, and how much is reserved for it."""
    if memory.HasField("resident_bytes"):
        yield _mebibytes(memory.resident_bytes)
    if memory.HasField("reserved_bytes"):
        yield f"{_mebibytes(memory.reserved_bytes)} reserved"


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"


def memory_bytes(memory: ResourceTracker) -> tuple[int, int]:
    """Returns how much of main memory is reserved, and how much there is for models."""
    ram = Resource(MAIN, RAM_BYTES, 0)
    return memory.used[ram], memory.total[ram]


def when(time_s: float) -> str:
    """Returns a time for people, in UTC; "unknown" for 0."""
    if not time_s:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(time_s))


def _plain(text: str) -> str:
    """Returns a text as one line, because a comment must not end early and become config."""
    return " ".join(text.split())
