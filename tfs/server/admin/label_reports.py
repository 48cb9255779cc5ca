"""What labels mean now, what they should mean, and why they do not yet: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

_COMING: Final = (ManagerState.START.value, ManagerState.LOADING.value)


def label_reports(
    wanted: Mapping[str, int],
    meant: Mapping[str, int],
    states: Sequence[ServableState],
) -> list[pb.LabelReport]:
    """Returns which versions labels mean now, and which ones they wait for."""
    available = {
        state.id.version
        for state in states
        if state.manager_state is ManagerState.AVAILABLE
    }
    reports = []
    for label in sorted(wanted):
        report = pb.LabelReport(label=label)
        version = meant.get(label)
        if version is not None and version in available:
            report.version = version
        if wanted[label] not in available:
            report.pending_version = wanted[label]
        reports.append(report)
    return reports


def label_notes(
    labels: Sequence[pb.LabelReport],
    states: Sequence[ServableState],
    at_hand: Collection[int],
    base_path: str,
) -> list[str]:
    """Returns notes on labels that should mean a version which is not being loaded.

    There are none for a model without any version, whose problem is reported elsewhere,
    nor for a version that failed to load, which is reported in its own state.

    Args:
        labels: Labels of a model, as configured.
        states: States of its versions.
        at_hand: Versions that lie under its base path.
        base_path: Where that is.

    """
    known = {
        state.id.version
        for state in states
        if state.manager_state is not ManagerState.END or state.error is not None
    }
    notes = []
    for label in labels if states else ():
        wanted = label.pending_version
        if not label.HasField("pending_version") or wanted in known:
            continue
        why = (
            f"is in {base_path} and cannot be served yet"
            if wanted in at_hand
            else f"is not in {base_path}"
        )
        meanwhile = (
            f"until it is loaded, the label means version {label.version}"
            if label.HasField("version")
            else "requests with the label get NOT_FOUND"
        )
        notes.append(
            f"label {label.label} is for version {wanted}, which {why}; {meanwhile}"
        )
    return notes


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
