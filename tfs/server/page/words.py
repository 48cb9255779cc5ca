"""Times, counts and states in words."""

from __future__ import annotations

import math
from typing import Final

from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.report_words import state_word

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_STATES: Final = {
    "START": ("found", "busy"),
    "AVAILABLE": ("available", "good"),
    "END": ("ended", "past"),
    "FAILED": ("failed", "bad"),
    "QUARANTINED": ("quarantined", "bad"),
}


def ago(then_s: float, now_s: float) -> str:
    """Returns how long ago something was, in one unit: "3 min"."""
    past_s = max(0.0, now_s - then_s)
    for size_s, unit in _UNITS:
        if past_s >= size_s:
            return f"{past_s / size_s:.0f} {unit}"
    return "now"


def duration(seconds: float) -> str:
    """Returns a duration with three digits: "0.31 ms"."""
    for size_s, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size_s:
            return f"{seconds / size_s:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs" if seconds else "0"


def count(number: float) -> str:
    """Returns a count with commas, from a million on with three digits: "1.2M"."""
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number:,.0f}"


def share(value: float) -> str:
    """Returns a share as a percentage with three digits."""
    return f"{100 * value:.3g} %" if math.isfinite(value) else "—"


def state_of(version: pb.VersionReport) -> tuple[str, str]:
    """Returns where a version stands: a word, and what it means for callers."""
    word = state_word(version)
    if word == "START" and not version.since_s:  # a request loads it
        return "registered", "past"
    return _STATES.get(word, (word.lower(), "busy"))


def event_state(state: ServableState) -> tuple[str, str]:
    """Returns what has become of a version by an event, as :func:`state_of`."""
    has_failed = state.manager_state is ManagerState.END and state.error is not None
    word = "FAILED" if has_failed else state.manager_state.name
    return _STATES.get(word, (word.lower(), "busy"))
