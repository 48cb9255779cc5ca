"""The actions that a transition policy answers with, and what it is given to decide.

A policy is a pure function of the versions of *one* servable, and must not depend on
their order. It returns everything that may begin now, in the order to begin it: the
same actions as if it were asked again after each one had begun. (TensorFlow Serving's
policies return only the first action. To be asked once per action took two thousand
times two thousand looks for two thousand versions of one servable.) A version may
appear twice: as the one that serves and, with a higher generation, as the one made from
changed files that is to replace it.

(TensorFlow Serving: core/aspired_version_policy.h.)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from managers.versions.harness_state import HarnessSnapshot, HarnessState
from tfs.core.servable_id import ServableId


class ActionKind(enum.Enum):
    """What to do with a version."""

    LOAD = "load"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do next, and why. Immutable.

    Attributes:
        kind: Load or unload.
        id: The version.
        generation: Which of the version's harnesses is meant.
        why: The reason, in words for people, recorded with what it causes.

    """

    kind: ActionKind
    id: ServableId
    generation: int = 0
    why: str = ""


TransitionPolicy: TypeAlias = Callable[[Sequence[HarnessSnapshot]], Sequence[Action]]
"""Decides the next actions for one servable; empty while there is nothing to do."""


def without_needed(versions: Sequence[HarnessSnapshot]) -> list[HarnessSnapshot]:
    """Returns the versions but those that serve unaspired because callers need them."""
    return [
        v
        for v in versions
        if not (v.is_needed and not v.is_aspired and v.state is HarnessState.READY)
    ]


def load(version: HarnessSnapshot, why: str) -> Action:
    """Returns the action that loads ``version``."""
    return Action(ActionKind.LOAD, version.id, version.generation, why)


def unload(version: HarnessSnapshot, why: str) -> Action:
    """Returns the action that unloads ``version``."""
    return Action(ActionKind.UNLOAD, version.id, version.generation, why)


def age(version: HarnessSnapshot) -> tuple[int, int]:
    """Orders versions from lowest and oldest to highest and newest."""
    return version.id.version, version.generation


def aspired_new(versions: Sequence[HarnessSnapshot]) -> list[HarnessSnapshot]:
    """Returns the versions that are aspired and NEW, highest first."""
    new = [v for v in versions if v.is_aspired and v.state is HarnessState.NEW]
    return sorted(new, key=age, reverse=True)
