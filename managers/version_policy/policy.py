"""What a transition policy sees and answers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from managers.loader_harness import HarnessState
from tfs.core.servable_id import ServableId


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """One managed version at one moment."""

    id: ServableId
    state: HarnessState
    is_aspired: bool


class ActionKind(enum.Enum):
    """What to do with a version; unloads sort before loads."""

    UNLOAD = 0
    LOAD = 1


@dataclass(frozen=True, slots=True)
class Action:
    """One step on one version."""

    kind: ActionKind
    id: ServableId


class TransitionPolicy(Protocol):
    """Decides the next step of one servable stream.

    Implementors are pure: the same snapshots give the same answer, whatever their
    order. (TensorFlow Serving: core/aspired_version_policy.h.)
    """

    def next_action(self, versions: Sequence[VersionSnapshot]) -> Action | None:
        """Returns what to do next, None for nothing."""
        ...


def highest_new_aspired(versions: Sequence[VersionSnapshot]) -> ServableId | None:
    """Returns the highest aspired version that was not tried yet, None without one."""
    return max(
        (v.id for v in versions if v.is_aspired and v.state is HarnessState.NEW),
        default=None,
    )
