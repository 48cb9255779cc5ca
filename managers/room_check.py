"""Whether a version will fit, before the one that serves is unloaded for it.

A transition policy that unloads first takes away the version that serves before it is
known whether there is room for its heir. If there is none, nothing serves. And a
version that was refused for want of memory may fit later. A policy sees only the
versions of one servable and can judge neither. (TensorFlow Serving unloads first and
only then asks, and it never tries a refused version again.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import COMING_STATES, HarnessState
from managers.preflight import Preflight
from managers.version_policy.action import Action, ActionKind, TransitionPolicy, age


class RoomCheck:
    """Holds back plans that lack memory; retries refused versions. Confined to one step."""

    def __init__(self, preflight: Preflight) -> None:
        self._preflight = preflight
        self._waiting: dict[str, None] = {}

    def take_waiting(self) -> list[str]:
        """Returns the servables to plan again after room was made, the oldest first."""
        return list(self._waiting) if self._preflight.take_room_made() else []

    def plan(
        self, name: str, policy: TransitionPolicy, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Returns what the policy plans, as far as memory allows it now.

        A refused version that would fit now is managed anew and planned in a later
        step. The load of a stand-in for it is given up, because the two would wait for
        each other. A plan that takes away the last version that answers is held back
        until an heir is known to fit, and to have no fault that shows without loading
        it. Heirs that do not fit are ended, and the version that answers goes on
        serving.
        """
        preflight = self._preflight
        if not versions:
            self._waiting.pop(name, None)
            return ()
        if not preflight.has_memory_limit:
            return self._hold_back(policy(versions), versions)
        refused = [v for v in versions if v.is_aspired and preflight.is_refused(v)]
        for each in refused:
            as_new = replace(each, state=HarnessState.NEW, error=None)
            rest = [v for v in versions if v is not each]
            going = _going(policy([*rest, as_new]), versions)
            if preflight.manage_again(each, going, "there is room for it now"):
                for other in rest:  # the versions that were to stand in for it
                    if not other.is_aspired and other.state in COMING_STATES:
                        preflight.give_up(other)
                return ()
        plan = policy(versions)
        fitting = self._hold_back(plan, versions)
        if refused or fitting is not plan:
            self._waiting.setdefault(name)
        else:
            self._waiting.pop(name, None)
        return fitting

    def _hold_back(
        self, plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Returns the plan, or nothing while it must not take the last version away."""
        preflight = self._preflight
        if not any(action.kind is ActionKind.UNLOAD for action in plan):
            return plan
        going = _going(plan, versions)
        heirs = [v for v in versions if v.is_aspired and v.state is HarnessState.NEW]
        ready = [v for v in versions if v.state is HarnessState.READY]
        if not (heirs and going) or len(going) < len(ready):
            return plan
        # All loaders are asked at the same time, not one after the other.
        was_asked = [preflight.estimate(heir) for heir in heirs]
        if not all(was_asked):
            return ()
        heirs = [heir for heir in heirs if not preflight.end_if_flawed(heir)]
        # In the order in which they are loaded.
        for heir in sorted(heirs, key=age, reverse=True):
            if preflight.promise_room(heir, going):
                return plan
        if not preflight.is_room_coming:  # nothing else will make room soon
            for heir in heirs:
                preflight.refuse(heir, going)
        return ()


def _going(
    plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
) -> list[HarnessSnapshot]:
    """Returns the versions that a plan unloads."""
    unloads = {
        (action.id, action.generation)
        for action in plan
        if action.kind is ActionKind.UNLOAD
    }
    return [v for v in versions if (v.id, v.generation) in unloads]
