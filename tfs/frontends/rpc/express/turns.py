"""How much of the loop one connection may take before it is another's turn.

While one connection has its turn, all others wait. Turns are long, because that makes
large batches and few system calls, as long as there is one connection or all of them
have much to do. They are short as soon as a connection has little to do: its request
waits for about one turn of whoever floods the server, and that must not take longer
than the request itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHARED_S: Final = 10.0
"""Seconds for which turns stay short after a connection with little to do was seen
beside others."""

BUSY_S: Final = 1.0
"""Seconds after a turn with much to do during which a connection does not count as one
with little."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a connection may take in one round. Immutable.

    Attributes:
        num_requests: Most requests begun, and most completed; other work that takes
            time counts too (:mod:`~tfs.frontends.rpc.express.http2.frame_loop`).
        num_large_requests: Most requests of 64 KB or more completed.
        num_read_bytes: Most bytes read from its socket.
        num_written_bytes: Most bytes of large answers moved towards its socket.

    """

    num_requests: int
    num_large_requests: int
    num_read_bytes: int
    num_written_bytes: int


SHORT: Final = Turn(
    num_requests=16,
    num_large_requests=1,
    num_read_bytes=65_536,
    num_written_bytes=65_536,
)
"""A short turn: about a fifth of a millisecond, with a quick model."""


def is_busy(num_requests: int, num_bytes: int, has_more: bool) -> bool:
    """Tells whether a connection had as much to do as a short turn takes.

    Args:
        num_requests: Requests begun in its turn.
        num_bytes: Bytes received in its turn.
        has_more: Whether something was left to do.

    """
    return (
        has_more
        or num_requests >= SHORT.num_requests
        or num_bytes >= SHORT.num_read_bytes
    )


def turn_of(longest: Turn, shared_at_s: float | None, now_s: float) -> Turn:
    """Returns the turn of any connection.

    Args:
        longest: What one connection may take that is alone.
        shared_at_s: When a connection with little to do last had a turn after another
            one; None: never.
        now_s: The time now.

    """
    if shared_at_s is None or now_s - shared_at_s > SHARED_S:
        return longest
    return Turn(
        min(longest.num_requests, SHORT.num_requests),
        min(longest.num_large_requests, SHORT.num_large_requests),
        min(longest.num_read_bytes, SHORT.num_read_bytes),
        min(longest.num_written_bytes, SHORT.num_written_bytes),
    )


class Turns:
    """Keeps :func:`turn_of` up to date. Loop-confined.

    Attributes:
        current: The turn of the next connection.
        are_short: Whether turns are short now, so that nobody waits for long.
        last: Who had the last turn; kept up to date by those who have turns.

    Args:
        longest: What one connection may take that is alone.

    """

    __slots__ = ("_longest", "_shared_at_s", "are_short", "current", "last")

    def __init__(self, longest: Turn) -> None:
        self._longest = longest
        self._shared_at_s: float | None = None
        self.current = longest
        self.are_short = False
        self.last: object | None = None

    def share(self, now_s: float) -> None:
        """Notes that a connection with little to do had a turn after another one."""
        self._shared_at_s = now_s
        if not self.are_short:
            self.look(now_s)

    def forget(self, who: object) -> None:
        """Notes that a connection is gone."""
        if self.last is who:
            self.last = None

    def look(self, now_s: float) -> None:
        """Makes turns long again after a while without such a connection."""
        self.current = turn_of(self._longest, self._shared_at_s, now_s)
        self.are_short = self.current is not self._longest
