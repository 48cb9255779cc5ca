"""Whether a version will fit, before the one that serves is unloaded for it.

A transition policy that unloads first takes away the version that serves before it is
known whether there is room for its heir. If there is none, nothing serves. And a
version that was refused for want of memory may fit later. A policy sees only the
versions of one servable and can judge neither. (TensorFlow Serving unloads first and
only then asks, and it never tries a refused version again.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from managers.loading.version_executor import VersionExecutor
from managers.version_policy.action import Action, ActionKind, TransitionPolicy, age
from managers.versions.harness_snapshot import HarnessSnapshot
from managers.versions.harness_state import COMING_STATES, HarnessState
from managers.versions.version import Version
from managers.versions.version_table import VersionTable


class RoomCheck:
    """Holds back plans that lack memory; retries refused versions. Confined to one step.

    Args:
        table: The versions.
        executor: Asks their loaders, and ends those that will not load.
        on_change: Called with a name when one of its versions is managed anew.

    """

    def __init__(
        self,
        table: VersionTable,
        executor: VersionExecutor,
        on_change: Callable[[str], None],
    ) -> None:
        self._table = table
        self._executor = executor
        self._admission = executor.admission
        self._on_change = on_change
        self._waiting: dict[str, None] = {}

    def take_waiting(self) -> list[str]:
        """Returns the servables to plan again after room was made, the oldest first."""
        return list(self._waiting) if self._admission.take_room_made() else []

    def is_asking(self, version: HarnessSnapshot) -> bool:
        """Whether a version's loader is being asked; it cannot be loaded meanwhile."""
        found = self._find(version)
        return found is not None and found.is_asking

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
        if not versions:
            self._waiting.pop(name, None)
            return ()
        if not self._admission.has_limit:
            return self._hold_back(policy(versions), versions)
        refused = [
            v
            for v in versions
            if v.is_aspired
            and (found := self._find(v)) is not None
            and found.is_refused
        ]
        for each in refused:
            as_new = replace(each, state=HarnessState.NEW, error=None)
            rest = [v for v in versions if v is not each]
            if self._manage_again(each, _going(policy([*rest, as_new]), versions)):
                for other in rest:  # the versions that were to stand in for it
                    if not other.is_aspired and other.state in COMING_STATES:
                        self._executor.cancel_load(other.id, other.generation)
                return ()
        plan = policy(versions)
        fitting = self._hold_back(plan, versions)
        if refused or fitting is not plan:
            self._waiting.setdefault(name)
        else:
            self._waiting.pop(name, None)
        return fitting

    def _manage_again(
        self, version: HarnessSnapshot, going: Sequence[HarnessSnapshot]
    ) -> bool:
        """Begins the life of a refused version anew, if it fits without ``going``.

        Keeps room for it then.
        """
        refused = self._find(version)
        if refused is None or not refused.can_be_forgotten:
            return False
        is_asked = False

        def is_admitted(again: Version) -> bool:
            nonlocal is_asked
            is_asked = True
            return self._admission.promise(again, self._find_all(going))

        renewed = self._table.renew(
            refused,
            "there is room for it now",
            estimate=refused.estimate,
            is_admitted=is_admitted,
        )
        if renewed is None:
            refused.is_refused = is_asked  # without a loader it cannot be tried again
            return False
        self._on_change(version.id.name)
        return True

    def _hold_back(
        self, plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Returns the plan, or nothing while it must not take the last version away."""
        if not any(action.kind is ActionKind.UNLOAD for action in plan):
            return plan
        going = _going(plan, versions)
        heirs = [v for v in versions if v.is_aspired and v.state is HarnessState.NEW]
        ready = [v for v in versions if v.state is HarnessState.READY]
        if not (heirs and going) or len(going) < len(ready):
            return plan
        # In the order in which they are loaded.
        coming = self._find_all(sorted(heirs, key=age, reverse=True))
        # All loaders are asked at the same time, not one after the other.
        was_asked = [self._executor.ask_estimate(heir) for heir in coming]
        if not all(was_asked):
            return ()
        coming = [heir for heir in coming if not self._executor.end_if_flawed(heir)]
        unloaded = self._find_all(going)
        if any(self._admission.promise(heir, unloaded) for heir in coming):
            return plan
        if not self._admission.num_executing:  # nothing else will make room soon
            for heir in coming:
                self._executor.refuse(heir, unloaded)
        return ()

    def _find(self, version: HarnessSnapshot) -> Version | None:
        return self._table.find(version.id, version.generation)

    def _find_all(self, versions: Sequence[HarnessSnapshot]) -> list[Version]:
        return [each for v in versions if (each := self._find(v)) is not None]


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
