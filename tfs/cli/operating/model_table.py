"""The state of a server and its models, and what came of changes, as tables and lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tfs.cli.printing import ago, notes_lines, table
from tfs.server.admin.report_words import mebibytes

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def server_lines(server: pb.ServerReport, num_models: int) -> list[str]:
    """Returns the lines about the server itself."""
    state = type(server).State.Name(server.state)
    where = ", ".join(each.address for each in server.listeners) or "nowhere"
    lines = [
        f"{state}, {num_models} model(s), up {ago(server.started_s)}, "
        f"TFS {server.tfs_version}, torch {server.torch_version}",
        f"listening on {where}",
    ]
    if server.HasField("resident_bytes"):
        lines.append(f"resident memory {mebibytes(server.resident_bytes)}")
    if server.HasField("memory_limit_bytes"):
        reserved = mebibytes(server.memory_reserved_bytes)
        limit = mebibytes(server.memory_limit_bytes)
        lines.append(f"models may use {limit}, of which {reserved} are reserved")
    return lines


def models_table(models: Iterable[pb.ModelReport]) -> str:
    """Returns one line per model."""
    from tfs.server.admin.report_words import problems_of, state_word

    rows = []
    for model in models:
        available = [
            each.version for each in model.versions if state_word(each) == "AVAILABLE"
        ]
        labels = ", ".join(_label(each, model) for each in model.labels)
        rows.append(
            (
                model.name,
                model.primary if model.HasField("primary") else "-",
                ", ".join(map(str, available)) or _registered(model),
                labels or "-",
                *_latencies_ms(model),
                _canary_word(model),
                "yes" if model.overridden else "-",
                "; ".join(problems_of(model)) or "-",
            )
        )
    heads = (
        *("MODEL", "PRIMARY", "AVAILABLE", "LABELS", "P50 MS", "P99 MS"),
        *("CANARY", "OVERRIDE", "PROBLEM"),
    )
    return table(heads, rows)


def _registered(model: pb.ModelReport) -> str:
    is_registered = model.residency == type(model).REGISTERED
    return "registered" if is_registered else "-"


def _latencies_ms(model: pb.ModelReport) -> tuple[str, str]:
    """Returns what half and 99 % of a model's requests took at most, if that was asked."""
    from tfs.core.stats import HistogramSnapshot

    whole = HistogramSnapshot.merged(
        each.requests.latency_s
        for version in model.versions
        for each in version.signatures
        if each.requests.latency_s.counts
    )
    if not whole.num:
        return "-", "-"
    return f"{whole.quantile(0.5) * 1e3:.3g}", f"{whole.quantile(0.99) * 1e3:.3g}"


def _label(label: pb.LabelReport, model: pb.ModelReport) -> str:
    """Returns what a label means now, and what it should mean: "stable=1 (2 to come)"."""
    from tfs.server.admin.report_words import label_words

    now = label.version if label.HasField("version") else "-"
    to_come = label_words(label, model.versions)
    return f"{label.label}={now}{f' ({to_come})' if to_come else ''}"


def _canary_word(model: pb.ModelReport) -> str:
    if not model.HasField("canary"):
        return "-"
    phase = type(model.canary).Phase.Name(model.canary.phase).lower()
    return f"{model.canary.canary.version} {phase}"


def stats_table(stats: Iterable[pb.Stat]) -> str:
    """Returns one line per counter or gauge that is not 0, and per non-empty histogram."""
    rows = []
    for stat in stats:
        labels = ", ".join(f"{key}={stat.labels[key]}" for key in sorted(stat.labels))
        if stat.HasField("histogram"):
            num = sum(stat.histogram.counts)
            value = f"{num} x {stat.histogram.total / num:.4g}" if num else ""
        else:
            value = f"{stat.value:.10g}" if stat.value else ""
        if value:
            rows.append((stat.name, value, labels or "-"))
    # The labels come last, where nothing is cut: their end tells versions apart.
    return table(("STAT", "VALUE", "LABELS"), rows)


def versions_table(models: Iterable[pb.ModelReport]) -> str:
    """Returns one line per version, and one for what is wrong with none of them."""
    from tfs.server.admin import report_words

    rows: list[Sequence[object]] = []
    for model in models:
        rows.extend(
            (
                model.name,
                each.version,
                report_words.state_word(each),
                ago(each.since_s),
                report_words.memory_words(each.memory) or "-",
                _place(each.placement) if each.HasField("placement") else "-",
                _why(each),
            )
            for each in model.versions
        )
        beside = "; ".join(report_words.problems_beside_versions(model))
        if beside or not model.versions:
            rows.append((model.name, "-", "-", "-", "-", "-", beside or "-"))
    heads = ("MODEL", "VERSION", "STATE", "SINCE", "MEMORY", "PLACE", "REASON")
    return table(heads, rows)


def _place(placement: pb.PlacementReport) -> str:
    """Returns where a version runs, and how often it brought a process down."""
    name = type(placement).Place.Name(placement.place).lower()
    place = name if placement.place else "-"  # 0 means that it is not known
    return f"{place}, {placement.num_crashes} died" if placement.num_crashes else place


def _why(version: pb.VersionReport) -> str:
    """Returns a version's error, or what its load waits for, or the reason of its state."""
    from tfs.server.admin.report_words import error_words, example_error

    if version.HasField("error"):
        return error_words(version)
    skew = f"live {version.skew}" if version.skew else ""
    why = version.load.waiting or example_error(version) or version.reason
    return "; ".join(filter(None, (why, skew)))


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
