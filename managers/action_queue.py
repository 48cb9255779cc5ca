"""The actions that wait for a thread, one per servable, in the order to begin them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from managers.version_policy.action import Action, ActionKind

ActionOrder: TypeAlias = Callable[[Action], int]
"""A sort key for the actions of a step; the smallest is begun first."""


@dataclass(slots=True)
class _Entry:
    action: Action
    place: int


class ActionQueue:
    """Takes the first action out in logarithmic time, however many wait.

    A thousand versions wait while eight load, and each load that ends takes the next:
    sorting all of them each time was most of what a manager did at a server's start.
    Confined to one caller at a time; ``num_loads`` may be read by anybody.

    Args:
        order: What sorts the actions; those it finds equal keep the order in which
            their servables got something to do.

    """

    def __init__(self, order: ActionOrder) -> None:
        self._order = order
        self._entries: dict[str, _Entry] = {}
        # By kind, because loads may have to wait while unloads need not. What was
        # replaced or dropped stays in until it comes to the top.
        self._heaps: dict[ActionKind, list[tuple[int, int, int, _Entry]]] = {
            kind: [] for kind in ActionKind
        }
        self._counter = itertools.count()
        self.num_loads = 0
        """Loads that wait."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, action: Action) -> None:
        """Queues what to do next for a servable, in the place of what was queued."""
        name = action.id.name
        before = self._entries.get(name)
        if before is not None and before.action == action:
            return
        place = next(self._counter) if before is None else before.place
        self.drop(name)
        entry = self._entries[name] = _Entry(action, place)
        self.num_loads += action.kind is ActionKind.LOAD
        item = (self._order(action), place, next(self._counter), entry)
        heapq.heappush(self._heaps[action.kind], item)

    def drop(self, name: str) -> None:
        """Takes out what is queued for a servable, if anything is."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.num_loads -= entry.action.kind is ActionKind.LOAD

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
        self.drop(entry.action.id.name)
        return entry.action

    def _top(self, kind: ActionKind) -> list[tuple[int, int, int, _Entry]]:
        """Returns the heap with something valid on top; empty if nothing is."""
        heap = self._heaps[kind]
        while heap:
            entry = heap[0][3]
            if self._entries.get(entry.action.id.name) is entry:
                break
            heapq.heappop(heap)
        return heap
