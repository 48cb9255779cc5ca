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
    highest_aspired_new,
    load,
    unload,
)


def resource_preserving(versions: Sequence[HarnessSnapshot]) -> Action | None:
    """Unloads everything that is not aspired, waits until it is gone, then loads.

    1. A READY version that is not aspired is unloaded, lowest first.
    2. While any version that is not aspired is neither DISABLED nor in ERROR,
       nothing is done.
    3. Otherwise the highest aspired NEW version is loaded.
    """
    unaspired = [v for v in versions if not v.is_aspired]
    stale = [v for v in unaspired if v.state is HarnessState.READY]
    if stale:
        return unload(min(stale, key=age), "unloads come before loads")
    if any(v.state not in END_STATES for v in unaspired):
        return None
    new = highest_aspired_new(versions)
    return None if new is None else load(new, "aspired; nothing else is loaded")
