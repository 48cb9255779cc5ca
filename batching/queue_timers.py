"""When to look again at queues that only wait for time to pass."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator

from batching.turn_order import AnyQueue

_NEVER = math.inf
# So that looking for expired tasks takes a few percent of a core.
_SWEEP_S_PER_TASK = 5e-6


class QueueTimers:
    """One timer for each queue. Confined to the scheduler's thread.

    A queue is due when its batch has to go although it is not full, or when one of its
    tasks expires. ``BatchQueue.timer_s`` is the time that counts; heap entries with
    any other time are obsolete.

    Attributes:
        heap: The timers. Others may only test whether it is empty.

    """

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, AnyQueue]] = []
        self._sequence = itertools.count()

    def await_batch(self, queue: AnyQueue) -> None:
        """Sets a timer for when a queue's batch has to go, or a task expires."""
        self._set(queue, min(_expiry_s(queue), queue.due_s))

    def await_expiry(self, queue: AnyQueue) -> None:
        """Sets a timer for when a task of a queue expires."""
        self._set(queue, _expiry_s(queue))

    def _set(self, queue: AnyQueue, when_s: float) -> None:
        if when_s < queue.timer_s:  # otherwise an earlier timer is set already
            queue.timer_s = when_s
            heapq.heappush(self.heap, (when_s, next(self._sequence), queue))

    def due(self, now_s: float) -> Iterator[AnyQueue]:
        """Yields the queues whose timers have run out, and ends their expired tasks.

        Timers may be set meanwhile.
        """
        heap = self.heap
        while heap and heap[0][0] <= now_s:
            when_s, _, queue = heapq.heappop(heap)
            if queue.timer_s != when_s:
                continue  # replaced by an earlier one
            queue.timer_s = _NEVER
            _sweep(queue, now_s)
            yield queue

    def next_s(self, held: Iterable[AnyQueue], now_s: float) -> float | None:
        """Returns when time alone brings the next work; None if it does not.

        Args:
            held: Queues that wait for the device. Their tasks' deadlines count all the
                same, and expired tasks are ended.
            now_s: The time now.

        """
        wake_s = self._first_s() if self.heap else _NEVER
        for queue in held:
            deadline_s = queue.next_deadline_s
            if deadline_s < _NEVER:
                if deadline_s <= now_s:
                    _sweep(queue, now_s)
                wake_s = min(wake_s, _expiry_s(queue))
        return None if wake_s == _NEVER else wake_s

    def _first_s(self) -> float:
        """Returns the first timer's time, once those of tasks that are gone are dropped."""
        heap = self.heap
        while heap:
            when_s, _, queue = heap[0]
            if queue.timer_s == when_s and not queue.in_ring and queue.num_rows:
                due_s = _expiry_s(queue)
                if queue.num_in_flight < queue.max_in_flight:
                    due_s = min(due_s, queue.due_s)
                if due_s <= when_s:
                    return when_s
            else:
                due_s = _NEVER
            # The timer was for a task that is gone by now, so it is corrected.
            heapq.heappop(heap)
            if queue.timer_s == when_s:
                queue.timer_s = _NEVER
                if due_s < _NEVER:
                    self._set(queue, due_s)
        return _NEVER


def _expiry_s(queue: AnyQueue) -> float:
    """Returns when to look for expired tasks of a queue."""
    return max(queue.next_deadline_s, queue.next_sweep_s)


def _sweep(queue: AnyQueue, now_s: float) -> None:
    """Ends expired tasks of a queue, unless that was done a moment ago."""
    if queue.next_deadline_s <= now_s and queue.next_sweep_s <= now_s:
        queue.next_sweep_s = now_s + _SWEEP_S_PER_TASK * len(queue)
        queue.drop_dead(now_s)
