"""Loads the new version first; the old one serves until the new one is ready.

For a while this takes the memory of both. If the new version fails, one old version
goes on serving indefinitely.
(TensorFlow Serving: core/availability_preserving_policy.h.)
"""

from __future__ import annotations

from collections.abc import Sequence

from managers.version_policy.action import (
    Action,
    age,
    aspired_new,
    load,
    unload,
    without_needed,
)
from managers.versions.harness_state import HarnessSnapshot, HarnessState


def availability_preserving(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Unloads what is not aspired once something aspired serves; else loads.

    1. READY versions that are not aspired are unloaded, lowest first, if nothing is
       aspired, or something aspired is READY; otherwise all but the last of them.
    2. Then aspired NEW versions are loaded, highest first.

    A version whose files changed appears twice; the one that serves is left alone
    until its successor is READY, whatever else serves: callers may name the version. So
    is one while an heir of it is aspired and not READY, because callers get it until
    then; if the heir failed, it goes on serving. What callers need is not unloaded.
    """
    versions = without_needed(versions)
    loads = [load(v, "aspired") for v in aspired_new(versions)]
    ready = [v for v in versions if v.state is HarnessState.READY]
    # Numbers of versions whose aspired contents are not READY yet.
    awaited = {
        v.id.version
        for v in versions
        if v.is_aspired and v.state is not HarnessState.READY
    }
    stale = [
        v
        for v in ready
        if not v.is_aspired and awaited.isdisjoint((v.id.version, *v.heirs))
    ]
    if not stale:
        return loads
    stale.sort(key=age)
    why = "no version is aspired"
    if any(v.is_aspired for v in versions):
        serving = [v for v in ready if v.is_aspired]
        if serving:
            why = f"version {max(serving, key=age).id.version} serves"
        else:
            why = f"version {stale.pop().id.version} serves meanwhile"
    return [unload(v, why) for v in stale] + loads
