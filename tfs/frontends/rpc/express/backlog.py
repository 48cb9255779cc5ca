"""Answers that clients do not take, bounded for the whole server.

What a client's windows or its socket do not take waits in memory. How much of it waits
for one client is bounded by what it may ask for; with many clients the sum would not
be. So where the sum exceeds its bound, whoever has taken least for the longest time goes,
until it fits. Rejected: to compute no answers meanwhile; then a few who read nothing keep
the others from being served.

Who takes its answers at a fair pace is as good as one who just began to wait, however
much it has waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tfs.frontends.rpc.express.sending_half import LEAST_PACE_BYTES_PER_S

_FAIR_S: Final = 1.0  # behind the fair pace by no more than that are all alike

R = TypeVar("R")


@dataclass(slots=True)
class _Wait:
    num_bytes: int
    fair_s: float  # when this much would have begun to wait at the least pace


class Backlog(Generic[R]):
    """What waits for each reader of answers. Loop-confined.

    Attributes:
        limit_bytes: What may wait.
        num_bytes: What does.

    """

    __slots__ = ("_waits", "limit_bytes", "num_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self._waits: dict[R, _Wait] = {}

    def note(self, reader: R, num_bytes: int, now_s: float) -> None:
        """Takes note of how much waits for a reader now; 0 forgets it."""
        wait = self._waits.get(reader)
        if wait is None:
            if num_bytes:
                self._waits[reader] = _Wait(num_bytes, now_s)
                self.num_bytes += num_bytes
            return
        num_taken = wait.num_bytes - num_bytes
        self.num_bytes -= num_taken
        if not num_bytes:
            del self._waits[reader]
            return
        wait.num_bytes = num_bytes
        if num_taken > 0:
            wait.fair_s = min(now_s, wait.fair_s + num_taken / LEAST_PACE_BYTES_PER_S)

    def excess(self, now_s: float) -> R | None:
        """Returns who has to go; None while everything fits.

        The one that is furthest behind the least pace; where none is, the one for whom
        most waits, if it is not the only one: an answer may be longer than the limit.
        """
        if self.num_bytes <= self.limit_bytes or not self._waits:
            return None
        slowest = min(self._waits, key=lambda reader: self._waits[reader].fair_s)
        if now_s - self._waits[slowest].fair_s > _FAIR_S:
            return slowest
        if len(self._waits) == 1:
            return None
        return max(self._waits, key=lambda reader: self._waits[reader].num_bytes)
