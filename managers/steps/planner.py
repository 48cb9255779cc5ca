"""Plans the next actions of a servable: those of its policy that are possible now.

Policies are pure functions of one servable's versions. This takes into account what
they cannot see: versions that were unloaded and may come back (StandIns), contents that
newer ones have replaced, memory (RoomCheck), versions whose elder is still being
unloaded or whose loader is busy, and whether the manager closes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from managers.steps.room_check import RoomCheck
from managers.steps.stand_ins import StandIns
from managers.version_policy.action import Action, ActionKind, TransitionPolicy, unload
from managers.versions.harness_snapshot import HarnessSnapshot
from managers.versions.harness_state import END_STATES, HarnessState

log = logging.getLogger(__name__)

_AT_REST: Final = END_STATES | {HarnessState.READY, HarnessState.NEW}


class Planner:
    """Decides on servables, one at a time. Confined to one step, but for ``set_policy``.

    Args:
        room: Holds back plans that lack memory.
        stand_ins: The versions that may come back.
        policy: The policy of servables without one of their own.

    """

    def __init__(
        self, room: RoomCheck, stand_ins: StandIns, policy: TransitionPolicy
    ) -> None:
        self._room = room
        self._stand_ins = stand_ins
        self._policy = policy
        self._policies: dict[str, TransitionPolicy] = {}

    def set_policy(self, name: str, policy: TransitionPolicy | None) -> None:
        """Sets how versions of ``name`` change; None for the default. Any thread."""
        if policy is None:
            self._policies.pop(name, None)
        else:
            self._policies[name] = policy

    def take_waiting(self) -> list[str]:
        """Returns which servables to plan again, because there may be room now."""
        return self._room.take_waiting()

    def plan(self, name: str, versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        """Returns what may begin now, in order.

        If a policy raises, that is logged and nothing is done.
        """
        versions = self._stand_ins.beside(name, versions)
        replaced = replaced_contents(versions)
        current = versions
        if replaced:
            current = [v for v in versions if v not in replaced]
        policy = self._policies.get(name, self._policy)
        try:
            plan = self._room.plan(name, policy, current)
        except Exception:  # a fault in one servable's policy must not stop the others
            log.exception("event=transition_policy_failed name=%s", name)
            return ()
        if replaced:
            why = "newer contents of it serve"
            plan = [*(unload(v, why) for v in replaced), *plan]
        plan = _without_waiting(plan, versions)
        return self._without_asking(plan, versions)

    def stand_back(
        self, name: str, versions: Sequence[HarnessSnapshot]
    ) -> list[HarnessSnapshot]:
        """Returns versions that pause between attempts and should be given up for now.

        These are the versions for which the policy would bring back others, if they had
        failed.
        """
        pausing = {v.generation for v in versions if v.is_aspired and v.is_pausing}
        if not pausing:
            return []
        seen = self._stand_ins.beside(name, versions)
        returning = {v.generation for v in seen if v.may_return}
        if not returning:
            return []
        as_failed = [
            replace(v, state=HarnessState.ERROR) if v.generation in pausing else v
            for v in seen
        ]
        try:
            plan = self._policies.get(name, self._policy)(as_failed)
        except Exception:  # ``plan`` reports it
            return []
        comes_back = any(
            action.kind is ActionKind.LOAD and action.generation in returning
            for action in plan
        )
        return [v for v in versions if v.generation in pausing] if comes_back else []

    def _without_asking(
        self, plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Leaves out loads of versions whose loader is busy already."""
        asking = {v.generation for v in versions if self._room.is_asking(v)}
        if not asking:
            return plan
        return [action for action in plan if action.generation not in asking]


def replaced_contents(versions: Sequence[HarnessSnapshot]) -> list[HarnessSnapshot]:
    """Returns loaded contents that are not aspired, except each version's newest.

    If files change again while their version's new contents load, neither the contents
    that serve nor these are aspired, and a policy keeps the newest of what serves.
    """
    left = [v for v in versions if v.state is HarnessState.READY and not v.is_aspired]
    newest: dict[int, int] = {}
    for v in left:
        newest[v.id.version] = max(v.generation, newest.get(v.id.version, v.generation))
    return [v for v in left if v.generation < newest[v.id.version]]


def unload_everything(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Returns the plan of a manager that closes: whatever serves is unloaded."""
    return [unload(v, "") for v in versions if v.state is HarnessState.READY]


def _without_waiting(
    plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
) -> Sequence[Action]:
    """Leaves out loads of versions whose elder is still on its way out.

    The elder has to be gone first, unless its unload takes so long that others have
    stopped waiting for it. An elder that serves may stay; the policy decides about
    that.
    """
    oldest_on_its_way: dict[int, int] = {}
    for v in versions:
        if v.state not in _AT_REST and (v.is_aspired or not v.is_late):
            before = oldest_on_its_way.setdefault(v.id.version, v.generation)
            oldest_on_its_way[v.id.version] = min(before, v.generation)
    if not oldest_on_its_way:
        return plan
    return [
        action
        for action in plan
        if action.kind is not ActionKind.LOAD
        or oldest_on_its_way.get(action.id.version, action.generation)
        >= action.generation
    ]
