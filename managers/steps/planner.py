"""Plans the next actions of a servable: those of its policy that are possible now.

Policies are pure functions of one servable's versions. This takes into account what they
cannot see.

* *Stand-ins*: versions that were unloaded for newer ones and may come back if those fail.
  A policy that unloads first bets on the new version. If that fails for good, nothing
  serves, although the old version may still be on disk: no source aspires it any more, so
  nobody would load it. This remembers how to load it and shows it to the policy.
* *Memory*: a version that serves is not unloaded before it is known that there is room for
  its heir, and a version that was refused for want of memory is tried again when it fits.
* Contents that newer ones have replaced, versions whose elder is still being unloaded or
  whose loader is busy, and whether the manager closes.

(TensorFlow Serving unloads first and only then asks, leaves nothing serving if the new
version fails, and never tries a refused version again.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from managers.loading.version_executor import VersionExecutor
from managers.transition_policy import (
    Action,
    ActionKind,
    TransitionPolicy,
    age,
    unload,
)
from managers.versions.harness_state import (
    COMING_STATES,
    END_STATES,
    HarnessSnapshot,
    HarnessState,
)
from managers.versions.version import LoaderData, Version
from managers.versions.version_table import VersionTable
from tfs.core.errors import serving_error
from tfs.core.loader import Loader
from tfs.core.source import ServableData

log = logging.getLogger(__name__)

_AT_REST: Final = END_STATES | {HarnessState.READY, HarnessState.NEW}


@dataclass(slots=True)
class _Gone:
    """A version that was unloaded for newer ones.

    Attributes:
        version: The version as policies see it.
        make: Makes another loader of it.
        gone_for: The newest generation that was aspired when it went.
        tried_for: The newest generation that was aspired when it was last brought back.
            If that attempt failed, it is not repeated before another generation has
            failed.

    """

    version: HarnessSnapshot
    make: Callable[[], Loader[object]]
    gone_for: int
    tried_for: int = -1


class Planner:
    """Decides on servables, one at a time. Confined to one step, but for ``set_policy``.

    Args:
        table: The versions.
        executor: Asks their loaders, ends those that will not load, and has the memory.
        policy: The policy of servables without one of their own.
        on_change: Called with a name when one of its versions is managed anew.

    """

    def __init__(
        self,
        table: VersionTable,
        executor: VersionExecutor,
        policy: TransitionPolicy,
        on_change: Callable[[str], None],
    ) -> None:
        self._table = table
        self._executor = executor
        self._admission = executor.admission
        self._policy = policy
        self._policies: dict[str, TransitionPolicy] = {}
        self._on_change = on_change
        # Servables that wait for memory, the longest first.
        self._waiting: dict[str, None] = {}
        self._gone: dict[str, list[_Gone]] = {}
        # The newest generation that is aspired of each servable that has one.
        self._newest: dict[str, int] = {}

    def set_policy(self, name: str, policy: TransitionPolicy | None) -> None:
        """Sets how versions of ``name`` change; None for the default. Any thread."""
        if policy is None:
            self._policies.pop(name, None)
        else:
            self._policies[name] = policy

    def take_waiting(self) -> list[str]:
        """Returns the servables to plan again after room was made, the oldest first."""
        return list(self._waiting) if self._admission.take_room_made() else []

    def plan(self, name: str, versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        """Returns what may begin now, in order.

        If a policy raises, that is logged and nothing is done.
        """
        versions = self._with_stand_ins(name, versions)
        replaced = replaced_contents(versions)
        current = [v for v in versions if v not in replaced] if replaced else versions
        try:
            plan = self._plan_within_memory(name, current)
        except Exception:  # a fault in one servable's policy must not stop the others
            log.exception("event=transition_policy_failed name=%s", name)
            return ()
        if replaced:
            why = "newer contents of it serve"
            plan = [*(unload(v, why) for v in replaced), *plan]
        plan = _without_waiting(plan, versions)
        asking = {v.generation for v in versions if self._is_asking(v)}
        return [action for action in plan if action.generation not in asking]

    def stand_back(
        self, name: str, versions: Sequence[HarnessSnapshot]
    ) -> list[HarnessSnapshot]:
        """Returns versions that pause between attempts and should be given up for now.

        These are the versions for which the policy would bring back others, if they had
        failed.
        """
        pausing = {v.generation for v in versions if v.is_aspired and v.is_pausing}
        if not pausing or name not in self._gone:
            return []
        seen = self._with_stand_ins(name, versions)
        returning = {v.generation for v in seen if v.may_return}
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

    # -- stand-ins -----------------------------------------------------------------------

    def note_unload(self, going: Version) -> None:
        """Remembers a version that serves and is about to be unloaded.

        Versions that were unloaded for the same generation are kept too; all others are
        forgotten.
        """
        make, version = going.make_another, going.snapshot()
        if make is None or version.state is not HarnessState.READY:
            return
        name = version.id.name
        gone_for = self._newest.get(name, -1)
        gone = replace(version, state=HarnessState.DISABLED, may_return=True)
        beside = [
            each
            for each in self._gone.get(name, ())
            if each.gone_for == gone_for and each.version.id != version.id
        ]
        self._gone[name] = [*beside, _Gone(gone, make, gone_for)]

    def has_stand_in(self, name: str) -> bool:
        """Whether any version of a servable may come back. Any thread."""
        return bool(self._gone.get(name))

    def take_stand_in(
        self, action: Action, versions: Sequence[HarnessSnapshot]
    ) -> LoaderData | None:
        """Returns the version that an action loads, with a new loader; None if unknown.

        Args:
            action: The action that loads it.
            versions: All versions of the servable.

        """
        for gone in self._gone.get(action.id.name, ()):
            if gone.version.generation != action.generation:
                continue
            gone.tried_for = _newest_aspired(versions)
            try:
                return ServableData(action.id, gone.make())
            except Exception as error:
                log.warning("event=stand_in_failed servable=%s", action.id.slashed)
                wrapped = serving_error(error, f"cannot use {action.id.slashed}")
                return ServableData(action.id, None, wrapped)
        return None

    def _with_stand_ins(
        self, name: str, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[HarnessSnapshot]:
        """Returns what a policy decides on: the versions, and those that may come back.

        Those that may come back are forgotten once every aspired version serves, or
        none is aspired.
        """
        newest = _newest_aspired(versions)
        if newest < 0:
            self._newest.pop(name, None)
        else:
            self._newest[name] = newest
        if name not in self._gone:
            return versions
        if all(v.state is HarnessState.READY for v in versions if v.is_aspired):
            del self._gone[name]
            return versions
        present = {v.generation for v in versions}
        returning = (
            each.version
            for each in self._gone[name]
            if each.version.generation not in present and newest > each.tried_for
        )
        return [*versions, *returning]

    # -- memory --------------------------------------------------------------------------

    def _is_asking(self, version: HarnessSnapshot) -> bool:
        """Whether a version's loader is being asked; it cannot be loaded meanwhile."""
        found = self._find(version)
        return found is not None and found.is_asking

    def _plan_within_memory(
        self, name: str, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[Action]:
        """Returns what the policy plans, as far as memory allows it now.

        A refused version that would fit now is managed anew and planned in a later
        step. The load of a stand-in for it is given up, because the two would wait for
        each other.
        """
        policy = self._policies.get(name, self._policy)
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
        """Returns the plan, or nothing while it must not take the last version away.

        It must not until an heir is known to fit, and to have no fault that shows without
        loading it. Heirs that do not fit are ended, and the version that answers goes on
        serving.
        """
        going = _going(plan, versions)
        heirs = [v for v in versions if v.is_aspired and v.state is HarnessState.NEW]
        num_ready = sum(v.state is HarnessState.READY for v in versions)
        if not (heirs and going) or len(going) < num_ready:
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


def _going(
    plan: Sequence[Action], versions: Sequence[HarnessSnapshot]
) -> list[HarnessSnapshot]:
    """Returns the versions that a plan unloads."""
    unloads = {each.generation for each in plan if each.kind is ActionKind.UNLOAD}
    return [v for v in versions if v.generation in unloads] if unloads else []


def _newest_aspired(versions: Sequence[HarnessSnapshot]) -> int:
    return max((v.generation for v in versions if v.is_aspired), default=-1)


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
    return [
        action
        for action in plan
        if action.kind is not ActionKind.LOAD
        or oldest_on_its_way.get(action.id.version, action.generation)
        >= action.generation
    ]
