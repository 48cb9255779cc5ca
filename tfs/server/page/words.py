"""Times, sizes and states in words."""

from __future__ import annotations

import math
from typing import Final

from tfs.core.servable_state import ServableState
from tfs.proto.tensorflow_serving.apis import get_model_status_pb2
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))

State = get_model_status_pb2.ModelVersionStatus.State
GOOD, BUSY, BAD, PAST = "good", "busy", "bad", "past"


def ago(then_s: float, now_s: float) -> str:
    """Returns how long ago something was, in one unit: "3 min"."""
    past_s = max(0.0, now_s - then_s)
    for size_s, unit in _UNITS:
        if past_s >= size_s:
            return f"{past_s / size_s:.0f} {unit}"
    return "now"


def duration(seconds: float) -> str:
    """Returns a duration with three digits: "0.31 ms"."""
    if not seconds:
        return "0"
    for size_s, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size_s:
            return f"{seconds / size_s:.3g} {unit}"
    return f"{seconds / 1e-6:.2g} µs"


def size(num_bytes: float) -> str:
    """Returns a size with three digits: "512 MB"."""
    for unit_bytes, unit in _SIZES:
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def count(number: float) -> str:
    """Returns a count with commas, from a million on with three digits: "1.2M"."""
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number:,.0f}"


def share(value: float) -> str:
    """Returns a share as a percentage with two digits."""
    return f"{100 * value:.3g} %" if math.isfinite(value) else "—"


def cut(text: str, num: int = 160) -> str:
    """Returns a text of at most so many characters, with an ellipsis for the rest."""
    return text if len(text) <= num else f"{text[: num - 1].rstrip()}…"


def state_of(version: pb.VersionReport) -> tuple[str, str]:
    """Returns where a version stands: a word, and what it means for callers."""
    if version.quarantined:
        return "quarantined", BAD
    if version.state == State.START and not version.since_s:  # a request loads it
        return "registered", PAST
    return _state(version.state, has_failed=bool(version.error.code))


def event_state(state: ServableState) -> tuple[str, str]:
    """Returns what has become of a version by an event, as :func:`state_of`."""
    return _state(state.manager_state.value, has_failed=state.error is not None)


def _state(state: int, *, has_failed: bool) -> tuple[str, str]:
    if state == State.AVAILABLE:
        return "available", GOOD
    if state == State.END:
        return ("failed", BAD) if has_failed else ("ended", PAST)
    return ("found" if state == State.START else State.Name(state).lower()), BUSY
