"""A trial as a message: where it stands, and the figures of both versions."""

from __future__ import annotations

from collections.abc import Sequence

from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.version_report import histogram
from tfs.server.canary.comparison import Figures, judge
from tfs.server.canary.trial import Trial
from tfs.server.config.running_config import RunningConfig


def canary_report(
    trial: Trial,
    running: RunningConfig,
    primary: int | None,
    states: Sequence[ServableState],
    *,
    include_latencies: bool,
) -> pb.CanaryReport:
    """Returns the state of a trial; ``states`` are those of the model's versions."""
    rejected = trial.rejected  # before what goes with it
    version, total = trial.settings.version, trial.total
    report = pb.CanaryReport(
        since_s=trial.since_s,
        total=comparison(total, include_latencies=include_latencies),
        by_signature={
            name: comparison(each, include_latencies=include_latencies)
            for name, each in trial.by_signature.items()
        },
        guards=judge(trial.settings.guard, total),
        num_teed_requests=trial.num_teed,
        num_dropped_tees=trial.num_dropped,
        num_split_to_primary=trial.num_split_to_primary,
        num_split_to_canary=trial.num_split_to_canary,
    )
    model = running.model_message(trial.name)
    if model is not None:
        report.canary.CopyFrom(model.traffic.canary)
    if primary is not None and primary != version:
        report.primary = primary
    if rejected:
        report.phase = pb.CanaryReport.REJECTED
        report.reason = rejected
    elif hindrance := _hindrance(version, states):
        report.phase = pb.CanaryReport.WAITING
        report.reason = hindrance
    elif primary is None or primary == version:
        report.phase = pb.CanaryReport.WAITING
        report.reason = f"no version but {version} is available to compare with"
    else:
        report.phase = pb.CanaryReport.RUNNING
    return report


def _hindrance(version: int, states: Sequence[ServableState]) -> str:
    """Returns why a version cannot be requested; "" if it can."""
    state = next((each for each in states if each.id.version == version), None)
    if state is not None and state.manager_state is ManagerState.AVAILABLE:
        return ""
    if state is not None and state.error is not None:
        return f"version {version} is not available: {state.error.message}"
    return f"version {version} is not available yet"


def comparison(figures: Figures, *, include_latencies: bool = False) -> pb.Comparison:
    """Returns figures, and histograms of latencies; what was not measured is absent."""
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
    if include_latencies and figures.primary_s and figures.canary_s:
        report.primary_latency_s.CopyFrom(histogram(figures.primary_s))
        report.canary_latency_s.CopyFrom(histogram(figures.canary_s))
    return report
