"""Loads the new version before it unloads the old: never a gap, twice the memory."""

from __future__ import annotations

from collections.abc import Sequence

from managers.loader_harness import HarnessState
from managers.version_policy.policy import (
    Action,
    ActionKind,
    VersionSnapshot,
    highest_new_aspired,
)


class AvailabilityPreservingPolicy:
    """Keeps a version ready until an aspired one is. Pure.

    Of the ready versions that are not aspired the lowest goes first, and the last
    of them only once an aspired version is ready, or none is aspired at all. So a
    new version that fails leaves the old one serving.
    (TensorFlow Serving: core/availability_preserving_policy.cc.)
    """

    def next_action(self, versions: Sequence[VersionSnapshot]) -> Action | None:
        """Returns an unload that costs no availability, else a load, else nothing."""
        aspired = [v for v in versions if v.is_aspired]
        leaving = [
            v.id for v in versions if not v.is_aspired and v.state is HarnessState.READY
        ]
        if leaving and (
            not aspired
            or len(leaving) > 1
            or any(v.state is HarnessState.READY for v in aspired)
        ):
            return Action(ActionKind.UNLOAD, min(leaving))
        new = highest_new_aspired(versions)
        return None if new is None else Action(ActionKind.LOAD, new)
