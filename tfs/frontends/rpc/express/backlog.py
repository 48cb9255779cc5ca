"""Answers that clients do not take, bounded for the whole server.

Answers that a client's windows or its socket do not take wait in memory. For one client
their size is bounded by what it may ask for, but with many clients the sum would not
be. When the sum exceeds what is open
(:mod:`~tfs.frontends.rpc.express.http2.headroom`), large requests wait. Then, and
whenever the sum exceeds its own limit, clients are cut off until the rest fits, first
the one that has read least for the longest time: a few clients that read nothing must
not keep the others from being served.

A client that reads its answers at a fair pace counts as if it had just begun to wait,
however much it has waiting. Such readers are waited for.

Where nobody waits for room, those that are far behind go all the same once more is unread
than is open: small answers wait for nobody, and ten thousand clients with 48 KB each are
half a gigabyte. Thousands may have to go at once, so they are looked for together, and
not at every round.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, TypeVar

from tfs.frontends.rpc.express.http2.headroom import Headroom
from tfs.frontends.rpc.least_pace import LEAST_PACE_BYTES_PER_S

# Readers that are behind the fair pace by no more than this are treated alike.
_FAIR_S: Final = 1.0
_IDLE_S: Final = 5.0  # the same where nobody waits for room
_LOOK_S: Final = 0.1  # with ten thousand readers, a look takes 3 ms

CUT_OFF_AT_ONCE: Final = 64
"""Readers that are cut off in one round, at most: that takes a few milliseconds."""

R = TypeVar("R")


@dataclass(slots=True)
class _Wait:
    num_bytes: int
    resident_bytes: int
    fair_s: float  # when the wait would have begun at the least pace


class Backlog(Generic[R]):
    """What waits for each reader of answers. Loop-confined.

    Attributes:
        limit_bytes: How many bytes may wait in any case.
        num_bytes: How many bytes wait now.

    Args:
        limit_bytes: As above.
        headroom: Is told how many bytes wait, and tells how many may wait while others
            wait for room. By default it is as large as the limit.

    """

    __slots__ = ("_headroom", "_next_look_s", "_waits", "limit_bytes", "num_bytes")

    def __init__(self, limit_bytes: int, headroom: Headroom | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._headroom = headroom or Headroom(limit_bytes)
        self.num_bytes = 0
        self._waits: dict[R, _Wait] = {}
        self._next_look_s = -inf

    def note(
        self, reader: R, num_bytes: int, now_s: float, resident_bytes: int = 0
    ) -> None:
        """Notes how much waits for a reader now; 0 forgets the reader.

        Args:
            reader: The reader it waits for.
            num_bytes: How many bytes the reader has to read.
            now_s: The time now.
            resident_bytes: How many bytes are kept in memory for it, if that is more.

        """
        resident_bytes = max(num_bytes, resident_bytes)
        wait = self._waits.get(reader)
        if wait is None:
            if num_bytes:
                self._waits[reader] = _Wait(num_bytes, resident_bytes, now_s)
                self.num_bytes += num_bytes
                self._headroom.unread_bytes += resident_bytes
            return
        num_taken = wait.num_bytes - num_bytes
        self.num_bytes -= num_taken
        if not num_bytes:
            self._headroom.unread_bytes -= wait.resident_bytes
            del self._waits[reader]
            return
        self._headroom.unread_bytes += resident_bytes - wait.resident_bytes
        wait.num_bytes = num_bytes
        wait.resident_bytes = resident_bytes
        if num_taken > 0:
            wait.fair_s = min(now_s, wait.fair_s + num_taken / LEAST_PACE_BYTES_PER_S)

    def excess(
        self, now_s: float, is_contested: bool = False, most: int = CUT_OFF_AT_ONCE
    ) -> list[R]:
        """Returns the readers that have to be cut off, the slowest first.

        They are those that are furthest behind the minimum pace, until the rest fits.
        If none is behind and the limit is exceeded, it is the one for which most waits,
        unless that is the only one: a single answer may be longer than the limit.

        Args:
            now_s: The time now.
            is_contested: Whether others wait for room. If so, readers behind the pace
                are cut off once unread answers take a quarter of what is open.
            most: No more than so many are returned; others may have to go as well.

        """
        num_bytes, unread_bytes = self.num_bytes, self._headroom.unread_bytes
        if self._patience_s(num_bytes, unread_bytes, is_contested) is None or (
            now_s < self._next_look_s and num_bytes <= self.limit_bytes
        ):
            return []
        waits = self._waits
        gone: list[R] = []
        for reader in heapq.nsmallest(most, waits, key=lambda each: waits[each].fair_s):
            wait = waits[reader]
            patience_s = self._patience_s(num_bytes, unread_bytes, is_contested)
            if patience_s is None or now_s - wait.fair_s <= patience_s:
                break
            gone.append(reader)
            num_bytes -= wait.num_bytes
            unread_bytes -= wait.resident_bytes
        if not gone and num_bytes > self.limit_bytes and len(waits) > 1:
            gone.append(max(waits, key=lambda each: waits[each].num_bytes))
        if len(gone) < most:
            self._next_look_s = now_s + _LOOK_S
        return gone

    def _patience_s(
        self, num_bytes: int, unread_bytes: int, is_contested: bool
    ) -> float | None:
        """Returns how far behind readers may be while so much waits; None: however far."""
        headroom = self._headroom
        if (
            num_bytes > self.limit_bytes
            or unread_bytes > headroom.most_unread_bytes
            or (is_contested and headroom.would_block(unread_bytes))
        ):
            return _FAIR_S
        return _IDLE_S if unread_bytes > headroom.open_to_answers_bytes else None
