"""What a report says in words, on the command line, in the shown config and on the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tfs.core.errors import Code
from tfs.core.servable_state import ManagerState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

_COMING: Final = (ManagerState.START.value, ManagerState.LOADING.value)


def label_words(label: pb.LabelReport, versions: Iterable[pb.VersionReport]) -> str:
    """Returns which version a label should mean but does not, "2 to come"; "" if none.

    Args:
        label: A label of a model.
        versions: Versions of that model.

    """
    if not label.HasField("pending_version"):
        return ""
    wanted = label.pending_version
    version = next((each for each in versions if each.version == wanted), None)
    if version is not None and version.state in _COMING:
        return f"{wanted} to come"
    if version is not None and version.HasField("error"):
        return f"{wanted} failed"
    return f"{wanted} not loaded"


def state_word(version: pb.VersionReport) -> str:
    """Returns where a version stands: a state, QUARANTINED or FAILED."""
    if version.quarantined:
        return "QUARANTINED"
    is_over = version.state == ManagerState.END.value
    is_cancelled = version.error.code == int(Code.CANCELLED)
    if is_over and version.HasField("error") and not is_cancelled:
        return "FAILED"
    return ManagerState(version.state).name


def problems_of(model: pb.ModelReport) -> list[str]:
    """Returns what is wrong with a model, all of it.

    Versions that failed before the primary came, or that are not asked for any more, do
    not count: the table of versions shows them.
    """
    problems = []
    for version in model.versions:
        is_past = version.state == ManagerState.END.value and (
            (model.HasField("primary") and version.version < model.primary)
            or not version.HasField("load")
        )
        if version.HasField("error") and not is_past:
            word = state_word(version)
            told = f" {word}" if word in ("QUARANTINED", "FAILED") else ""
            problems.append(f"version {version.version}{told}: {error_words(version)}")
    problems += problems_beside_versions(model)
    if not problems:
        problems = [
            f"version {version.version}: {why}"
            for version in model.versions
            if (why := version.load.waiting or example_error(version))
        ][:1]
    return problems


def problems_beside_versions(model: pb.ModelReport) -> list[str]:
    """Returns what no version's line can show: base path, half a version, labels."""
    return [*filter(None, [model.error.message]), *model.notes]


def error_words(version: pb.VersionReport) -> str:
    """Returns what is wrong with a version, and whether it is tried again by itself."""
    return "; ".join(filter(None, (version.error.message, version.load.waiting)))


def example_error(version: pb.VersionReport) -> str:
    """Returns which signature fails on its own example here; "" if none is known to."""
    for signature in version.signatures:
        if signature.example_error:
            return (
                f"{signature.name} fails on its own example: {signature.example_error}"
            )
    return ""


def memory_words(memory: pb.MemoryReport) -> str:
    """Returns how much memory a version takes, and how much is reserved if there is a limit."""
    parts = []
    if memory.HasField("resident_bytes"):
        parts.append(mebibytes(memory.resident_bytes))
    if memory.HasField("reserved_bytes"):
        parts.append(f"{mebibytes(memory.reserved_bytes)} reserved")
    return ", ".join(parts)


def mebibytes(size_bytes: int) -> str:
    """Returns a size for people: "1.5 MiB"."""
    return f"{size_bytes / 2**20:.1f} MiB"
