"""What a loader measures during one load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadMeasures:
    """What was seen while the version was loaded. Immutable; see ModelProfile."""

    import_s: float | None = None
    load_s: float | None = None
    load_peak_bytes: int | None = None
    resident_bytes: int | None = None
    process_changes: str = ""
