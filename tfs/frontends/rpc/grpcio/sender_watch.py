"""Watches whether grpcio's clients send the requests for which they have a place.

grpcio does not report a request before it is whole. But the operating system counts the
bytes that came over a connection, and we know how many of these were whole requests.
The difference is what partial requests hold in memory. How it changes from one look to
the next shows which clients send.

A client that sends next to nothing is disconnected: soon if others wait, late if nobody
does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tfs.frontends.rpc.grpcio.connections import Connections
from tfs.frontends.rpc.least_pace import LEAST_PACE_BYTES_PER_S

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""Seconds between two looks."""

_QUICK_S: Final = 0.25  # younger requests are not looked at
_STUCK_S: Final = 1.0  # how long a client may send nothing while others wait
# How long it may send nothing while nobody waits, and how long a whole request may take
# while others wait.
_LONGEST_S: Final = 60.0
# How long a request that should be short may take while all places are taken.
_HURRIED_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Turn:
    """The requests of one client that are being read. Immutable.

    Attributes:
        peer: The client, by grpcio's name.
        since_s: When its turn began. A turn lasts as long as any request is being read.
        oldest_s: When we asked for the oldest of the requests.
        num_requests: Number of requests.
        delivered_bytes: Bytes of all whole requests that this client is known to have
            sent.
        is_new: Whether nothing else came over its connection than these requests and
            the delivered bytes.
        is_hurried: Whether it has less time, because its requests should be short.

    """

    peer: str
    since_s: float
    oldest_s: float
    num_requests: int
    delivered_bytes: int
    is_new: bool
    is_hurried: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of the clients that have a turn. Immutable.

    Attributes:
        held_bytes: Bytes of partial requests that they sent, as far as known.
        is_anybody_stuck: Whether at least one of them sends next to nothing.

    """

    held_bytes: int
    is_anybody_stuck: bool


@dataclass(slots=True)
class _Pace:
    since_s: float  # when the turn began
    looked_s: float
    moved_s: float  # when it last sent something
    first_bytes: int  # bytes of the connection that belong to no request in this turn
    seen_bytes: int  # beyond whole requests, as the last look found


class SenderWatch:
    """Disconnects clients that do not use their turn. Confined to grpcio's thread.

    Args:
        connections: The connections of the clients.

    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._paces: dict[str, _Pace] = {}
        self._looked_s = float("-inf")

    def look(self, turns: Iterable[Turn], now_s: float, *, is_contested: bool) -> Look:
        """Looks at all clients that have a turn; to be called every :data:`LOOK_S`.

        Args:
            turns: One for each client whose requests are being read.
            now_s: The time.
            is_contested: Whether others wait for a turn.

        """
        # If this process got no processor for a while, it learns late of what was sent.
        # That is not the clients' fault.
        is_late = now_s - self._looked_s > 2 * LOOK_S
        self._looked_s = now_s
        paces, self._paces = self._paces, {}
        held_bytes = 0
        is_anybody_stuck = False
        for turn in turns:
            if now_s - turn.oldest_s < _QUICK_S:
                continue
            traffic = self._connections.traffic(turn.peer)
            if traffic is None:
                is_anybody_stuck = True  # the connection is about to end
                continue
            sent_bytes = traffic.received_bytes - turn.delivered_bytes
            pace = paces.get(turn.peer)
            if pace is None or pace.since_s != turn.since_s:
                first_bytes = 0 if turn.is_new else sent_bytes
                pace = _Pace(turn.since_s, now_s, now_s, first_bytes, sent_bytes)
            else:
                wanted_bytes = (now_s - pace.looked_s) * LEAST_PACE_BYTES_PER_S
                has_sent = sent_bytes - pace.seen_bytes >= wanted_bytes
                # If the socket holds bytes that grpcio has not read yet, the client did
                # send.
                if has_sent or traffic.unread_bytes or is_late:
                    pace.moved_s = now_s
                is_anybody_stuck |= not has_sent
                pace.looked_s = now_s
                pace.seen_bytes = sent_bytes
            self._paces[turn.peer] = pace
            held_bytes += sent_bytes - pace.first_bytes
            if _is_over(turn, pace, now_s, is_contested):
                log.warning(
                    "event=slow_sender peer=%s num_requests=%d is_closed=%s note=%r",
                    self._connections.address(turn.peer),
                    turn.num_requests,
                    self._connections.disconnect(turn.peer),
                    "it began requests and sends no more of them",
                )
        return Look(held_bytes, is_anybody_stuck)


def _is_over(turn: Turn, pace: _Pace, now_s: float, is_contested: bool) -> bool:
    """Whether a client's turn is over."""
    silent_s = now_s - pace.moved_s
    if not is_contested:
        return silent_s >= _LONGEST_S
    longest_s = _HURRIED_S if turn.is_hurried else _LONGEST_S
    return silent_s >= _STUCK_S or now_s - turn.oldest_s > longest_s
