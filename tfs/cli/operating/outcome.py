"""What came of changes to a server: trials, overrides and configurations, as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfs.cli.operating.model_table import models_table
from tfs.cli.printing import notes_lines, table

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def canary_lines(model: pb.ModelReport) -> list[str]:
    """Returns the lines about a trial."""
    if not model.HasField("canary"):
        return [f"{model.name} has no canary"]
    report = model.canary
    canary, total = report.canary, report.total
    phase = type(report).Phase.Name(report.phase)
    primary = report.primary if report.HasField("primary") else "nothing"
    lines = [
        f"{model.name}: version {canary.version} against {primary}: {phase}"
        + (f": {report.reason}" if report.reason else ""),
        f"tee {canary.tee_fraction:g}: {report.num_teed_requests} copied, "
        f"{report.num_dropped_tees} dropped; split {canary.split_fraction:g}: "
        f"{report.num_split_to_canary} to the canary, "
        f"{report.num_split_to_primary} to the primary",
        f"compared {total.num_requests} requests, {total.num_rows} rows, "
        f"{total.num_incomparable} incomparable",
    ]
    figures = [
        (name.replace("_", " "), f"{getattr(total, name):.4g}")
        for name in (
            "max_abs_diff",
            "mean_abs_diff",
            "top1_disagreement",
            "primary_error_rate",
            "canary_error_rate",
            "latency_ratio",
        )
        if total.HasField(name)
    ]
    if figures:
        lines.append(table(("FIGURE", "VALUE"), figures))
    if report.guards:
        rows = [
            (
                guard.name,
                f"{guard.limit:.4g}",
                f"{guard.value:.4g}" if guard.HasField("value") else "-",
                _verdict(guard, canary.guard.min_samples),
            )
            for guard in report.guards
        ]
        lines.append(table(("GUARD", "LIMIT", "VALUE", "VERDICT"), rows))
    return lines


def _verdict(guard: pb.GuardReport, min_samples: int) -> str:
    if not guard.HasField("value"):
        return "not measured"
    if guard.exceeded:
        return "exceeded"
    if guard.value <= guard.limit:
        return "kept"
    return f"over it, of fewer than {min_samples} samples"


def outcome_lines(outcome: pb.OverrideOutcome) -> list[str]:
    """Returns the lines about the outcome of an override."""
    lines = []
    if not outcome.changed:
        lines.append("nothing changed")
    if outcome.HasField("override"):
        from google.protobuf import text_format

        config = type(outcome.override.config)()
        config.CopyFrom(outcome.override.config)
        config.ClearField("name")
        text = text_format.MessageToString(config, as_one_line=True).strip()
        lines.append(f"override: {text}")
    else:
        lines.append("no override: what the configuration says holds")
    if outcome.HasField("model"):
        lines.append(models_table([outcome.model]))
    return [*lines, *notes_lines(outcome.notes)]


def apply_lines(reply: pb.ApplyConfigResponse) -> list[str]:
    """Returns the lines about the outcome of a configuration, model by model."""
    rows = [
        (
            each.model,
            type(each).Change.Name(each.change).lower(),
            ", ".join(each.changed_fields) or "-",
            ", ".join(map(str, each.available_versions)) or "-",
            ", ".join(map(str, each.pending_versions)) or "-",
            each.status.message or "ok",
        )
        for each in reply.models
    ]
    heads = ("MODEL", "CHANGE", "FIELDS", "AVAILABLE", "PENDING", "STATUS")
    lines = [table(heads, rows)] if rows else []
    return [*lines, *notes_lines(reply.notes)]
