"""What labels mean now, what they should mean, and why they do not yet: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
