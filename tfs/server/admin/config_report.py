"""The running config as messages, and as a config file with its state as comments."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from google.protobuf import text_format

from managers.loading.load_admission import ResourceTracker
from tfs.core.resources import MAIN, RAM_BYTES, Resource
from tfs.core.servable_state import ManagerState
from tfs.proto._pool import POOL
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.report_words import label_words, mebibytes, memory_words
from tfs.server.config.running_config import Base, RunningConfig
from tfs.server.config.server_config import config_text
from tfs.server.config.waiting import ConfigOutcome
from tfs.server.messages import fill_error


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


def apply_reply(outcome: ConfigOutcome) -> pb.ApplyConfigResponse:
    """Returns the outcome of a config, model by model."""
    reply = pb.ApplyConfigResponse(applied=outcome.is_applied, notes=outcome.notes)
    fill_error(reply.status, outcome.error)
    reply.models.extend(outcome.models)
    return reply


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
            f"# Models may use {mebibytes(total)}, of which {mebibytes(used)} are "
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
        words = memory_words(version.memory)
        memory = f", {words}" if words else ""
        error = f", {version.error.message}" if version.HasField("error") else ""
        lines.append(
            f"version {version.version}: {state} since {when(version.since_s)} "
            f"({version.reason}){memory}{error}"
        )
    return lines


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
