"""Deadlines of calls, cheaper than a timer each.

Nearly every call ends long before its deadline, so adding and removing must cost
next to nothing; those that end in the round in which they began are never added.
Deadlines are rounded up to ticks of 5 ms, more coarsely the further away they are
(by 1/512 at most), and calls of the same tick share a bucket; the serving loop has
one timer, for the first bucket.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tfs.core.loop.serving_loop import ServingLoop, Timer

TICKS_PER_S: Final = 200
_EXACT_TICKS: Final = 1024

T = TypeVar("T")
Bucket = dict[T, None]


class Deadlines(Generic[T]):
    """Calls a function for each entry whose deadline passes. Loop-confined.

    Args:
        loop: Gives the time and the timer.
        expire: Takes an entry that is due; it has been removed. Must not raise.

    """

    __slots__ = (
        "_buckets",
        "_expire",
        "_loop",
        "_ticks",
        "_timer",
        "_timer_tick",
    )

    def __init__(self, loop: ServingLoop, expire: Callable[[T], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._buckets: dict[int, Bucket[T]] = {}
        self._ticks: list[int] = []  # a heap of the keys of _buckets
        self._timer: Timer | None = None
        self._timer_tick = 0

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def add(self, entry: T, deadline_s: float, now_s: float) -> Bucket[T]:
        """Adds an entry; to remove it, delete it from the bucket returned."""
        tick = int(deadline_s * TICKS_PER_S) + 1
        distance = tick - int(now_s * TICKS_PER_S)
        if distance > _EXACT_TICKS:
            shift = distance.bit_length() - 10
            tick = (tick >> shift) + 1 << shift
        found = self._buckets.get(tick)
        if found is None:
            found = self._buckets[tick] = {}
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._arm()
        found[entry] = None
        return found

    def close(self) -> None:
        """Forgets everything; nothing expires any more."""
        self._buckets.clear()
        self._ticks.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = self._ticks[0]
        self._timer = self._loop.call_at(self._timer_tick / TICKS_PER_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_tick = int(self._loop.clock.now() * TICKS_PER_S + 1e-6)
        ticks = self._ticks
        while ticks and (ticks[0] <= now_tick or not self._buckets[ticks[0]]):
            # Ending an entry removes it from the bucket, so this iterates over a copy.
            for entry in list(self._buckets.pop(heapq.heappop(ticks))):
                self._expire(entry)
        if ticks and self._timer is None:
            self._arm()
