"""Loads the new version first; the old one serves until the new one is ready.

Costs the memory of both for a while. A new version that fails leaves one old one
serving, indefinitely. (TensorFlow Serving: core/availability_preserving_policy.h.)
"""

from __future__ import annotations

from collections.abc import Sequence

from managers.loader_harness import HarnessSnapshot, HarnessState
from managers.version_policy.action import (
    Action,
    age,
    highest_aspired_new,
    load,
    unload,
)


def availability_preserving(versions: Sequence[HarnessSnapshot]) -> Action | None:
    """Unloads what is not aspired once something aspired serves; else loads.

    1. A READY version that is not aspired is unloaded, lowest first, if nothing is
       aspired, or something aspired is READY, or another such version would remain.
    2. Otherwise the highest aspired NEW version is loaded.

    A version whose files changed appears twice; the one that serves is left alone
    until its successor is READY, whatever else serves: callers may name the version.
    """
    ready = [v for v in versions if v.state is HarnessState.READY]
    # Aspired successors of the same number that are to replace it, but not yet.
    heirs = {
        v.id for v in versions if v.is_aspired and v.state is not HarnessState.READY
    }
    stale = [v for v in ready if not v.is_aspired and v.id not in heirs]
    if stale:
        lowest = min(stale, key=age)
        serving = [v for v in ready if v.is_aspired]
        if not any(v.is_aspired for v in versions):
            return unload(lowest, "no version is aspired")
        if serving:
            newest = max(serving, key=age)
            return unload(lowest, f"version {newest.id.version} serves")
        if len(stale) > 1:
            kept = max(stale, key=age)
            return unload(lowest, f"version {kept.id.version} serves meanwhile")
    new = highest_aspired_new(versions)
    return None if new is None else load(new, "aspired")
