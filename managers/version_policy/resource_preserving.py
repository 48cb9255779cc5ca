"""Unloads the old version first: never two where one is aspired.

Costs availability: between the two nothing serves. For models of which two do not
fit into memory. (TensorFlow Serving: core/resource_preserving_policy.h.)
"""

from __future__ import annotations

from collections.abc import Sequence

from managers.loader_harness import END_STATES, HarnessSnapshot, HarnessState
from managers.version_policy.action import (
    Action,
    age,
    aspired_new,
    load,
    unload,
)


def resource_preserving(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Unloads everything that is not aspired, waits until it is gone, then loads.

    1. READY versions that are not aspired are unloaded, lowest first.
    2. While any version that is not aspired is neither DISABLED nor in ERROR,
       nothing is done.
    3. Otherwise aspired NEW versions are loaded, highest first.
    """
    unaspired = [v for v in versions if not v.is_aspired]
    stale = [v for v in unaspired if v.state is HarnessState.READY]
    if stale:
        return [unload(v, "unloads come before loads") for v in sorted(stale, key=age)]
    if any(v.state not in END_STATES for v in unaspired):
        return []
    return [load(v, "aspired; nothing else is loaded") for v in aspired_new(versions)]
