"""Unloads the old version first, so that old and new are never both in memory.

The price is availability: between the two nothing serves. It is for models of which two
do not fit into memory. If the new version fails for good, the old one comes back.
(TensorFlow Serving: core/resource_preserving_policy.h.)
"""

from __future__ import annotations

from collections.abc import Sequence

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import END_STATES, HarnessState
from managers.version_policy.action import (
    Action,
    age,
    aspired_new,
    load,
    unload,
)


def resource_preserving(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Unloads everything that is not aspired, waits until it is gone, then loads.

    1. READY versions that are not aspired are unloaded, lowest first. The last of them
       goes on serving, however, while everything aspired is in ERROR.
    2. While any version that is not aspired is neither DISABLED nor in ERROR,
       nothing is done.
    3. Otherwise aspired NEW versions are loaded, highest first.
    4. If everything aspired is in ERROR, what was unloaded for it is loaded again.
    """
    unaspired = [v for v in versions if not v.is_aspired]
    stale = [v for v in unaspired if v.state is HarnessState.READY]
    aspired = [v for v in versions if v.is_aspired]
    if stale and _have_all_failed(aspired):
        stale.remove(max(stale, key=age))
        why = "what is aspired failed, and one version serves meanwhile"
        return [unload(v, why) for v in sorted(stale, key=age)]
    if stale:
        return [unload(v, "unloads come before loads") for v in sorted(stale, key=age)]
    if any(v.state not in END_STATES for v in unaspired):
        return []
    loads = [load(v, "aspired; nothing else is loaded") for v in aspired_new(versions)]
    if loads or not _have_all_failed(aspired):
        return loads
    failed = max(aspired, key=age).id.version
    why = f"version {failed} failed, for which it was unloaded; it serves meanwhile"
    former = [v for v in unaspired if v.may_return]
    return [load(max(former, key=age), why)] if former else []


def _have_all_failed(aspired: Sequence[HarnessSnapshot]) -> bool:
    return bool(aspired) and all(v.state is HarnessState.ERROR for v in aspired)
