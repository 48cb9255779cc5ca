"""The actions that wait for a thread, in the order to begin them; a plan per name."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from managers.transition_policy import Action, ActionKind

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
