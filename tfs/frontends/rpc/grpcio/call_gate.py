"""Limits the calls that grpcio holds, for all connections together.

A call takes 25 KB as soon as grpcio has heard of it, even if its client resets it at
once, and it does so until we have taken the call. So the relay lets few calls in at a
time, and holds back the frames with which further ones begin. The number of calls that
wait is then bounded however many clients there are and however often they connect.

Each connection may have some calls in any case. Otherwise clients whose calls last for
hours, which watch something, would keep everybody else out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

_MOST_CALLS: Final = 512
_OWN_CALLS: Final = 8  # that each connection may have in any case
_MOST_OWN_CALLS: Final = 4096  # of all connections, before these wait as well
# While so many calls wait to be found dead, each connection may have one call in any
# case, and others wait their turn. grpcio takes a millisecond for each on a busy machine.
_MOST_DEAD: Final = 64
# grpcio does not tell when it has let go of a call that was reset. It takes its calls
# in turn, so one of them is gone whenever we get a call. If no calls come for so long,
# none is left.
_LIMBO_S: Final = 1.0


class Holder(Protocol):
    """A connection that holds calls back."""

    def go_on(self) -> bool:
        """Lets in the next call; returns whether there are more."""
        ...


class CallGate:
    """Counts the calls of all connections. Confined to grpcio's thread.

    Attributes:
        num_calls: Calls that grpcio may hold now.
        now: The time in seconds.

    Args:
        now: The time in seconds.

    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.num_calls = 0
        self.now = now
        self._holders: deque[Holder] = deque()
        self._limbo: deque[tuple[float, Callable[[], None]]] = deque()

    def may_begin(self, num_own: int) -> bool:
        """Tells whether a connection that has so many calls may begin another."""
        if num_own < (_OWN_CALLS if self.may_reset() else 1):
            return self.num_calls < _MOST_OWN_CALLS
        return self._has_room() and not self._holders

    def may_reset(self) -> bool:
        """Tells whether few of the calls that clients have given up are there still."""
        return len(self._limbo) < _MOST_DEAD

    def begin(self) -> None:
        """Counts a call, which is owed an ``end`` or ``reset``."""
        self.num_calls += 1

    def end(self) -> None:
        """Notes that a call is over, and lets in one that waits."""
        self.num_calls -= 1
        self.go_on()

    def reset(self, on_gone: Callable[[], None]) -> None:
        """Notes that a client has given up a call; ``on_gone`` is told when it is over."""
        self._limbo.append((self.now(), on_gone))

    def note_taken(self) -> None:
        """Notes that we got a call from grpcio."""
        if self._limbo:
            self._leave_limbo()

    def look(self) -> None:
        """Counts calls that were reset long ago as over; to be called now and then."""
        until_s = self.now() - _LIMBO_S
        while self._limbo and self._limbo[0][0] <= until_s:
            self._leave_limbo()

    def wait(self, holder: Holder) -> None:
        """Has a connection go on when there is room for a call."""
        self._holders.append(holder)

    def forget(self, holder: Holder) -> None:
        """Forgets a connection that is gone; idempotent."""
        if holder in self._holders:
            self._holders.remove(holder)

    def go_on(self) -> None:
        """Lets in calls of the connections in turn while there is room."""
        while self._holders and self._has_room():
            holder = self._holders.popleft()
            if holder.go_on():
                self._holders.append(holder)

    def _has_room(self) -> bool:
        return self.num_calls < _MOST_CALLS and self.may_reset()

    def _leave_limbo(self) -> None:
        self._limbo.popleft()[1]()
        self.end()
