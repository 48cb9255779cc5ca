"""Limits the calls that grpcio holds, for all connections together.

A call takes 25 KB as soon as grpcio has heard of it. So the relay holds back the frames
with which further ones begin, by one rule: the more calls there are, the fewer of them
each connection may have. Each may have one in any case, so that clients whose calls
last for hours, which watch something, keep nobody out. Whoever has the fewest goes on
first, and among those, whoever has waited longest.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

# A connection may begin another call while its calls times all calls are less than this.
# So 8 connections may have 64 each, 60 may have 23, 4096 may have 8.
_MOST_PRODUCT: Final = 32_768
# The same of *fresh* calls, which grpcio has not handed over. It does that in the order in
# which they came, some thousand in a second, dead or alive: whoever comes next waits for
# all of them. 8 connections may have 8 each, 60 may have 3.
_MOST_FRESH_PRODUCT: Final = 512
_MOST_FRESH: Final = 2048  # of all connections; from 4096 on, grpcio cancels anybody's
# grpcio may also drop a call that was reset, and tells nobody. By then it has handed over
# a call that came so much later, if it hands over any.
_LIMBO_S: Final = 0.25


class Holder(Protocol):
    """A connection that holds calls back."""

    def go_on(self) -> None:
        """Lets in the next call, and waits again if there are more."""
        ...


class CallGate:
    """Counts the calls of all connections. Confined to grpcio's thread.

    Attributes:
        num_calls: Calls that grpcio may hold now.
        num_fresh: Those of them that it has not handed over.
        num_queuing: Connections that have fresh calls, which say so.
        now: The time in seconds.

    Args:
        now: The time in seconds.

    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.num_calls = 0
        self.num_fresh = 0
        self.num_queuing = 0
        self.now = now
        # Those that wait, by how many calls they have; the longest waiting first.
        self._waiting: dict[int, OrderedDict[Holder, None]] = {}
        self._num_own: dict[Holder, int] = {}
        # Calls that were reset while they were fresh, and when; those of connections that
        # are gone come apart.
        self._limbo: deque[tuple[float, Callable[[], None]]] = deque()
        self._orphans: deque[float] = deque()
        self._taken_s = now()
        self._is_going_on = False

    def may_begin(self, num_own: int) -> bool:
        """Tells whether a connection that has so many calls may begin another."""
        return num_own * self.num_calls < _MOST_PRODUCT and self.num_fresh < _MOST_FRESH

    def may_queue(self, num_own: int) -> bool:
        """Tells whether a connection of which so many calls are fresh may begin another.

        It may have half as many as others have on average in any case. If it may not
        now, it may when one of its own is handed over.
        """
        return (
            num_own * self.num_fresh < _MOST_FRESH_PRODUCT
            or 2 * num_own * self.num_queuing < self.num_fresh
        )

    def begin(self) -> None:
        """Counts a fresh call, which is owed an ``end_fresh`` and an ``end``."""
        self.num_calls += 1
        self.num_fresh += 1

    def end_fresh(self) -> None:
        """Notes that a call is handed over, or gone; ``go_on`` is to be called soon."""
        self.num_fresh -= 1

    def end(self) -> None:
        """Notes that a call is over; :meth:`go_on` is to be called soon."""
        self.num_calls -= 1

    def go_on(self) -> None:
        """Lets in calls that may begin now; does nothing within itself."""
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._waiting:
                num_own = min(self._waiting)
                if not self.may_begin(num_own):
                    return
                holder = next(iter(self._waiting[num_own]))
                self.forget(holder)
                holder.go_on()
        finally:
            self._is_going_on = False

    def wait(self, holder: Holder, num_own: int) -> None:
        """Has a connection that has so many calls go on when it may begin another.

        It keeps its place if it waits with as many already.
        """
        if self._num_own.get(holder) != num_own:
            self.forget(holder)
            self._num_own[holder] = num_own
            self._waiting.setdefault(num_own, OrderedDict())[holder] = None

    def forget(self, holder: Holder) -> None:
        """Has a connection wait no longer; idempotent."""
        num_own = self._num_own.pop(holder, None)
        if num_own is not None:
            del self._waiting[num_own][holder]
            if not self._waiting[num_own]:
                del self._waiting[num_own]

    def reset(self, on_gone: Callable[[], None]) -> None:
        """Notes that a fresh call was reset; ``on_gone`` is told if grpcio drops it."""
        self._limbo.append((self.now(), on_gone))

    def leave(self) -> None:
        """Takes over a fresh call of a connection that is gone."""
        self._orphans.append(self.now())

    def note_taken(self, begun_s: float) -> None:
        """Notes that grpcio has handed over a call that began then."""
        self._taken_s = self.now()
        self._drop(begun_s - _LIMBO_S)

    def note_orphan_taken(self) -> None:
        """Notes that grpcio has handed over a call of a connection that is gone."""
        self._taken_s = self.now()
        if self._orphans:
            self._orphans.popleft()
            self._end_orphan()
            self.go_on()

    def look(self) -> None:
        """Finds calls that grpcio has dropped; to be called now and then."""
        until_s = self.now() - _LIMBO_S
        if self._taken_s <= until_s:
            self._drop(until_s)
        self.go_on()

    def _drop(self, until_s: float) -> None:
        """Forgets calls that were reset before that."""
        while self._limbo and self._limbo[0][0] <= until_s:
            self._limbo.popleft()[1]()
        while self._orphans and self._orphans[0] <= until_s:
            self._orphans.popleft()
            self._end_orphan()

    def _end_orphan(self) -> None:
        self.end_fresh()
        self.end()
