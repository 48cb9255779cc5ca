"""A trial as a message: where it stands, and the figures of both versions."""

from __future__ import annotations

from collections.abc import Sequence

from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.version_report import histogram
from tfs.server.canary.comparison import Figures, TrialRecord
from tfs.server.config.running_config import RunningConfig


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
    report.guards.extend(record.limits)
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
