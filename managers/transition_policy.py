"""What to load or unload next of one servable: pure functions over snapshots.

A policy is a pure function of the versions of *one* servable, and must not depend on
their order. It returns everything that may begin now, in the order to begin it: the
same actions as if it were asked again after each one had begun. (TensorFlow Serving's
policies return only the first action. To be asked once per action took two thousand
times two thousand looks for two thousand versions of one servable.) A version may
appear twice: as the one that serves and, with a higher generation, as the one made from
changed files that is to replace it.

(TensorFlow Serving: core/aspired_version_policy.h, availability_preserving_policy.h,
resource_preserving_policy.h.)
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from managers.versions.harness_state import END_STATES, HarnessSnapshot, HarnessState
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


def availability_preserving(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Unloads what is not aspired once something aspired serves; else loads.

    1. READY versions that are not aspired are unloaded, lowest first, if nothing is
       aspired, or something aspired is READY; otherwise all but the last of them.
    2. Then aspired NEW versions are loaded, highest first.

    A version whose files changed appears twice; the one that serves is left alone
    until its successor is READY, whatever else serves: callers may name the version. So
    is one while an heir of it is aspired and not READY, because callers get it until
    then; if the heir failed, it goes on serving. What callers need is not unloaded.
    """
    versions = without_needed(versions)
    loads = [load(v, "aspired") for v in aspired_new(versions)]
    ready = [v for v in versions if v.state is HarnessState.READY]
    # Numbers of versions whose aspired contents are not READY yet.
    awaited = {
        v.id.version
        for v in versions
        if v.is_aspired and v.state is not HarnessState.READY
    }
    stale = [
        v
        for v in ready
        if not v.is_aspired and awaited.isdisjoint((v.id.version, *v.heirs))
    ]
    if not stale:
        return loads
    stale.sort(key=age)
    why = "no version is aspired"
    if any(v.is_aspired for v in versions):
        serving = [v for v in ready if v.is_aspired]
        if serving:
            why = f"version {max(serving, key=age).id.version} serves"
        else:
            why = f"version {stale.pop().id.version} serves meanwhile"
    return [unload(v, why) for v in stale] + loads


def resource_preserving(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Unloads everything that is not aspired, waits until it is gone, then loads.

    1. READY versions that are not aspired are unloaded, lowest first. The last of them
       goes on serving, however, while everything aspired is in ERROR.
    2. While any version that is not aspired is neither DISABLED nor in ERROR,
       nothing is done.
    3. Otherwise aspired NEW versions are loaded, highest first.
    4. If everything aspired is in ERROR, what was unloaded for it is loaded again.
    5. If all heirs of a version are in ERROR, it takes the place of one of them, whatever
       else serves: it stays, or is loaded again, highest first. New contents of a
       version count as its heir.

    What callers need is not unloaded, and counts for nothing here.
    """
    versions = without_needed(versions)
    failed = {v.id.version for v in versions if v.is_aspired} - {
        v.id.version
        for v in versions
        if v.is_aspired and v.state is not HarnessState.ERROR
    }
    unaspired = [v for v in versions if not v.is_aspired]
    if not failed or not unaspired:
        return _unload_first(versions)
    orphans = [v for v in unaspired if _is_orphan(v, failed)]
    serving = [v for v in orphans if v.state is HarnessState.READY]
    serving = sorted(serving, key=age, reverse=True)[: len(failed)]
    kept = {v.generation for v in serving}
    plan = _unload_first(
        [replace(v, is_aspired=True) if v.generation in kept else v for v in versions]
    )
    # If everything failed, the latest version comes back by rule 4, which need not be the
    # one that callers mean.
    returning = {v.generation for v in unaspired if v.may_return}
    is_for_return = all(action.generation in returning for action in plan)
    former = [v for v in orphans if v.may_return]
    is_busy = any(
        v.state not in END_STATES for v in unaspired if v.generation not in kept
    )
    if not is_for_return or len(kept) >= len(failed) or is_busy or not former:
        return plan
    chosen = max(former, key=age)
    return [load(chosen, _stands_in_for(_heirs_of(chosen, failed)))]


def _unload_first(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Rules 1 to 4."""
    unaspired = [v for v in versions if not v.is_aspired]
    stale = [v for v in unaspired if v.state is HarnessState.READY]
    aspired = [v for v in versions if v.is_aspired]
    if stale and _have_all_failed(aspired):
        stale.remove(max(stale, key=age))
        why = "what is aspired failed, and one version serves meanwhile"
        return [unload(v, why) for v in sorted(stale, key=age)]
    if stale:
        return [unload(v, "unloads come before loads") for v in sorted(stale, key=age)]
    if any(v.state not in END_STATES for v in unaspired):
        return []
    loads = [load(v, "aspired; nothing else is loaded") for v in aspired_new(versions)]
    if loads or not _have_all_failed(aspired):
        return loads
    former = [v for v in unaspired if v.may_return]
    why = _stands_in_for([max(aspired, key=age).id.version])
    return [load(max(former, key=age), why)] if former else []


def _heirs_of(version: HarnessSnapshot, failed: Collection[int]) -> Collection[int]:
    number = version.id.version
    return version.heirs or ([number] if number in failed else ())


def _is_orphan(version: HarnessSnapshot, failed: set[int]) -> bool:
    heirs = _heirs_of(version, failed)
    return bool(heirs) and failed.issuperset(heirs)


def _stands_in_for(failed: Collection[int]) -> str:
    listed = ", ".join(map(str, sorted(failed)))
    return f"version {listed} failed, for which it was unloaded; it serves meanwhile"


def _have_all_failed(aspired: Sequence[HarnessSnapshot]) -> bool:
    return bool(aspired) and all(v.state is HarnessState.ERROR for v in aspired)


ActionOrder: TypeAlias = Callable[[Action], int]
"""A sort key for the actions of a step; the smallest is begun first."""


@dataclass(slots=True)
class _Entry:
    plan: deque[Action]  # never empty
    place: int
    num_loads: int


class ActionQueue:
    """Takes the first action out in logarithmic time, however many wait.

    At a server's start a thousand versions may wait while eight load, and each load
    that ends takes the next one; sorting all of them each time was most of the
    manager's work. Only the first action of each servable's plan waits in the queue.
    Once that is taken, the next one lines up behind everybody else. Confined to one
    caller at a time, except ``num_loads``, which anybody may read.

    Args:
        order: The key to sort actions by; those with equal keys stay in the order in
            which their servables got something to do.

    """

    def __init__(self, order: ActionOrder) -> None:
        self._order = order
        self._entries: dict[str, _Entry] = {}
        # One heap for each kind, because loads may have to wait while unloads need not.
        # Entries that were replaced or dropped stay in until they come to the top.
        self._heaps: dict[ActionKind, list[tuple[int, int, int, _Entry]]] = {
            kind: [] for kind in ActionKind
        }
        self._counter = itertools.count()
        self.num_loads = 0
        """Loads that wait, of all plans."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, name: str, plan: Sequence[Action]) -> None:
        """Queues the next actions of a servable, in place of those queued before.

        Args:
            name: The servable.
            plan: Its actions, in order; an empty plan removes what was queued.

        """
        before = self._entries.get(name)
        self.drop(name)
        if plan:
            place = next(self._counter) if before is None else before.place
            num_loads = sum(action.kind is ActionKind.LOAD for action in plan)
            self.num_loads += num_loads
            self._push(name, _Entry(deque(plan), place, num_loads))

    def drop(self, name: str) -> None:
        """Removes the actions that are queued for a servable, if there are any."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.num_loads -= entry.num_loads

    def take(self, *, may_load: bool) -> Action | None:
        """Takes the first action out; None if there is none that may begin.

        Args:
            may_load: Whether it may be a load.

        """
        kinds = ActionKind if may_load else (ActionKind.UNLOAD,)
        heaps = [heap for kind in kinds if (heap := self._top(kind))]
        if not heaps:
            return None
        *_, entry = heapq.heappop(min(heaps, key=lambda heap: heap[0][:2]))
        action = entry.plan.popleft()
        name = action.id.name
        if action.kind is ActionKind.LOAD:
            self.num_loads -= 1
            entry.num_loads -= 1
        if entry.plan:
            self._push(name, _Entry(entry.plan, next(self._counter), entry.num_loads))
        else:
            del self._entries[name]
        return action

    def _push(self, name: str, entry: _Entry) -> None:
        self._entries[name] = entry
        first = entry.plan[0]
        item = (self._order(first), entry.place, next(self._counter), entry)
        heapq.heappush(self._heaps[first.kind], item)

    def _top(self, kind: ActionKind) -> list[tuple[int, int, int, _Entry]]:
        """Returns the heap with a valid entry on top; it is empty if there is none."""
        heap = self._heaps[kind]
        while heap:
            entry = heap[0][3]
            if self._entries.get(entry.plan[0].id.name) is entry:
                break
            heapq.heappop(heap)
        return heap
