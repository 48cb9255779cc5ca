"""Whether a version would fit before the one that serves goes for it, and who waits.

A transition policy that unloads first takes the version that serves away before anybody
knows whether its heir finds room; then nothing serves. And a version that was refused
for want of memory may fit later. Both are questions about memory that a policy, which
sees one servable's versions, cannot answer. (TensorFlow Serving unloads first and asks
then, and never tries a refused version again.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from managers.basic_manager import BasicManager
from managers.loader_harness import HarnessSnapshot, HarnessState
from managers.version_policy.action import Action, ActionKind, TransitionPolicy, age


class RoomCheck:
    """Holds plans back for memory, and brings refused versions back. Confined to one step.

    Attributes:
        waiting: Servables to be planned anew whenever memory may have been given back,
            those first that have waited longest.

    """

    def __init__(self, basic: BasicManager) -> None:
        self._basic = basic
        self.waiting: dict[str, None] = {}

    def plan(
        self, name: str, policy: TransitionPolicy, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Returns what the policy plans, as far as memory allows it now.

        A refused version that would fit now is managed anew, and planned when it shows.
        A plan that takes the last version that answers away is held back until it is
        known that an heir fits, and that nothing is wrong with it for good that can be
        told without loading it; others end, and what answers serves on.
        """
        basic = self._basic
        if not versions:
            self.waiting.pop(name, None)
            return ()
        if not basic.has_memory_limit:
            return self._hold_back(policy(versions), versions)
        refused = [v for v in versions if v.is_aspired and basic.is_refused(v)]
        for each in refused:
            as_new = replace(each, state=HarnessState.NEW, error=None)
            rest = [v for v in versions if v is not each]
            going = _going(policy([*rest, as_new]), versions)
            if basic.manage_again(each, going, "there is room for it now"):
                return ()
        plan = policy(versions)
        fitting = self._hold_back(plan, versions)
        if refused or fitting is not plan:
            self.waiting.setdefault(name)
        else:
            self.waiting.pop(name, None)
        return fitting

    def _hold_back(
        self, plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Returns a plan, or nothing while it must not take the last version away."""
        basic = self._basic
        if not any(action.kind is ActionKind.UNLOAD for action in plan):
            return plan
        going = _going(plan, versions)
        heirs = [v for v in versions if v.is_aspired and v.state is HarnessState.NEW]
        ready = [v for v in versions if v.state is HarnessState.READY]
        if not (heirs and going) or len(going) < len(ready):
            return plan
        # All are asked at once, not one after the other.
        was_asked = [basic.estimate_ahead(heir) for heir in heirs]
        if not all(was_asked):
            return ()
        heirs = [heir for heir in heirs if not basic.end_if_flawed(heir)]
        for heir in sorted(heirs, key=age, reverse=True):  # as they are loaded
            if basic.promise_room(heir, going):
                return plan
        if not basic.num_executing:  # nobody else will make room soon
            for heir in heirs:
                basic.refuse(heir, going)
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
