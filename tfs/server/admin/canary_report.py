"""A trial as a message: where it stands, and the figures of both versions."""

from __future__ import annotations

from collections.abc import Sequence

from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.canary.trial import Trial
from tfs.server.model_settings import ModelSettings


def canary_report(
    trial: Trial,
    settings: ModelSettings,
    primary: int | None,
    states: Sequence[ServableState],
    *,
    include_latencies: bool,
) -> pb.CanaryReport:
    """Returns the state of a trial; ``states`` are those of the model's versions."""
    report = trial.report(include_latencies=include_latencies)
    version = report.canary.version
    if settings.canary is not None:
        report.canary.CopyFrom(settings.canary)
    if primary is not None and primary != version:
        report.primary = primary
    if report.phase == pb.CanaryReport.REJECTED:
        return report
    if hindrance := _hindrance(version, states):
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
