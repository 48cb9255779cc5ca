"""Unloads the old version before it loads the new: never two in memory, but a gap."""

from __future__ import annotations

from collections.abc import Sequence

from managers.loader_harness import HarnessState
from managers.version_policy.policy import (
    Action,
    ActionKind,
    VersionSnapshot,
    highest_new_aspired,
)

_GONE = (HarnessState.DISABLED, HarnessState.ERROR)


class ResourcePreservingPolicy:
    """Never has an old and a new version in memory at once. Pure.

    (TensorFlow Serving: core/resource_preserving_policy.cc.)
    """

    def next_action(self, versions: Sequence[VersionSnapshot]) -> Action | None:
        """Returns an unload, else a load once nothing old is left, else nothing."""
        leaving = [v for v in versions if not v.is_aspired]
        ready = [v.id for v in leaving if v.state is HarnessState.READY]
        if ready:
            return Action(ActionKind.UNLOAD, min(ready))
        if any(v.state not in _GONE for v in leaving):
            return None
        new = highest_new_aspired(versions)
        return None if new is None else Action(ActionKind.LOAD, new)
