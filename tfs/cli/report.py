"""The output of commands: tables for people, JSON for scripts. Pure, except for printing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

_LONGEST_CELL = 72


def as_json(message: Message) -> str:
    """Returns protobuf's JSON form, with the field names of the .proto files.

    It contains zeros, False and empty lists, so that a script always finds the same
    keys. Message fields that are not set are left out.
    """
    from google.protobuf import json_format

    return json_format.MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns left-aligned columns, two blanks apart.

    The first column, which is a name, and the last one are never cut. Control
    characters, which texts of models may contain, are not passed on to the terminal.
    """
    cells = [list(heads)]
    for row in rows:
        first, *texts = (_printable(str(each)) for each in row)
        cells.append([first, *map(_cut, texts[:-1]), *texts[-1:]])
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def _printable(text: str) -> str:
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else "?" for each in line)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}..."


def ago(since_s: float, now_s: float | None = None) -> str:
    """Returns how long ago a time was: "12 s", "3 h"; "-" if unknown."""
    if not since_s:
        return "-"
    seconds = max(0.0, (time.time() if now_s is None else now_s) - since_s)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def mebibytes(size_bytes: int) -> str:
    """Returns a size for people."""
    return f"{size_bytes / 2**20:.1f} MiB"


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
        if server.num_reserve_processes:
            lines[-1] += (
                f", {mebibytes(server.reserve_bytes)} of it in "
                f"{server.num_reserve_processes} process(es) kept ready for a version"
            )
    if server.HasField("memory_limit_bytes"):
        reserved = mebibytes(server.memory_reserved_bytes)
        limit = mebibytes(server.memory_limit_bytes)
        lines.append(f"models may use {limit}, of which {reserved} are reserved")
    return lines


def models_table(models: Iterable[pb.ModelReport]) -> str:
    """Returns one line per model."""
    rows = []
    for model in models:
        available = [each.version for each in model.versions if each.state == 30]
        labels = ", ".join(_label(each, model) for each in model.labels)
        rows.append(
            (
                model.name,
                model.primary if model.HasField("primary") else "-",
                ", ".join(map(str, available)) or "-",
                labels or "-",
                _canary_word(model),
                "yes" if model.overridden else "-",
                problem_of(model) or "-",
            )
        )
    heads = ("MODEL", "PRIMARY", "AVAILABLE", "LABELS", "CANARY", "OVERRIDE", "PROBLEM")
    return table(heads, rows)


def _label(label: pb.LabelReport, model: pb.ModelReport) -> str:
    """Returns what a label means now, and what it should mean: "stable=1 (2 to come)"."""
    from tfs.server.label_reports import label_words

    now = label.version if label.HasField("version") else "-"
    to_come = label_words(label, model.versions)
    return f"{label.label}={now}{f' ({to_come})' if to_come else ''}"


def _canary_word(model: pb.ModelReport) -> str:
    if not model.HasField("canary"):
        return "-"
    phase = type(model.canary).Phase.Name(model.canary.phase).lower()
    return f"{model.canary.canary.version} {phase}"


def problem_of(model: pb.ModelReport) -> str:
    """Returns the first thing that is wrong with a model; "" if nothing is.

    Versions that failed before the primary came, or that are not asked for any more, do
    not count: the table of versions shows them.
    """
    from tfs.core.servable_state import ManagerState

    for version in model.versions:
        is_past = version.state == ManagerState.END.value and (
            (model.HasField("primary") and version.version < model.primary)
            or not version.HasField("load")
        )
        if version.HasField("error") and not is_past:
            return f"version {version.version}: {_error(version)}"
    if model.HasField("error"):
        return model.error.message
    if model.notes:
        return model.notes[0]
    hindrances = [
        f"version {version.version}: {why}"
        for version in model.versions
        if (why := _hindrance(version) or _example_error(version))
    ]
    return hindrances[0] if hindrances else ""


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
            rows.append((stat.name, labels or "-", value))
    return table(("STAT", "LABELS", "VALUE"), rows)


def versions_table(models: Iterable[pb.ModelReport]) -> str:
    """Returns one line per version."""
    from tfs.core.servable_state import ManagerState

    rows: list[Sequence[object]] = []
    for model in models:
        rows.extend(
            (
                model.name,
                each.version,
                ManagerState(each.state).name,
                ago(each.since_s),
                _memory(each.memory) or "-",
                _place(each.placement) if each.HasField("placement") else "-",
                _why(each),
            )
            for each in model.versions
        )
        if not model.versions:
            rows.append((model.name, "-", "-", "-", "-", "-", problem_of(model) or "-"))
    heads = ("MODEL", "VERSION", "STATE", "SINCE", "MEMORY", "PLACE", "REASON")
    return table(heads, rows)


def _memory(memory: pb.MemoryReport) -> str:
    """Returns how much memory a version takes, and how much is reserved if there is a limit."""
    parts = []
    if memory.HasField("resident_bytes"):
        parts.append(mebibytes(memory.resident_bytes))
    if memory.HasField("reserved_bytes"):
        parts.append(f"{mebibytes(memory.reserved_bytes)} reserved")
    return ", ".join(parts)


def _place(placement: pb.PlacementReport) -> str:
    """Returns where a version runs, and how often it brought a process down."""
    name = type(placement).Place.Name(placement.place).lower()
    place = name if placement.place else "-"  # 0 means that it is not known
    return f"{place}, {placement.num_crashes} died" if placement.num_crashes else place


def _why(version: pb.VersionReport) -> str:
    """Returns a version's error, or what its load waits for, or the reason of its state."""
    if version.HasField("error"):
        return _error(version)
    if version.load.HasField("next_attempt_s"):
        return version.notes[-1]
    return _hindrance(version) or _example_error(version) or version.reason


def _error(version: pb.VersionReport) -> str:
    """Returns what is wrong with a version, and whether it is tried again by itself."""
    if version.load.HasField("next_attempt_s"):
        return f"{version.error.message}; {version.notes[-1]}"
    return version.error.message


def _hindrance(version: pb.VersionReport) -> str:
    """Returns what a version's load waits for; "" if nothing is known."""
    from tfs.core.servable_state import ManagerState

    at_rest = (ManagerState.AVAILABLE.value, ManagerState.END.value)
    return "" if version.state in at_rest or not version.notes else version.notes[-1]


def _example_error(version: pb.VersionReport) -> str:
    """Returns which signature fails on its own example here; "" if none is known to."""
    for signature in version.signatures:
        if signature.example_error:
            return (
                f"{signature.name} fails on its own example: {signature.example_error}"
            )
    return ""


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


def notes_lines(notes: Iterable[str]) -> list[str]:
    """Returns notes for people."""
    return [f"note: {note}" for note in notes]


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


def emit(lines: Iterable[str]) -> None:
    """Prints lines."""
    for line in lines:
        print(line)
