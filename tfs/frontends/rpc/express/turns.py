"""How much of the loop one connection may take before it is another's turn.

What one takes, all others wait for. Turns are long, for that makes large batches and
few system calls, as long as there is one connection, or all of them have much to do.
Beside a connection that has little to do they are short: its request waits for about
one turn of whoever floods the server, and that must not take longer than the request
itself.
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
        num_requests: Begun, and made whole, at most; what else takes time counts too
            (:mod:`~tfs.frontends.rpc.express.frame_loop`).
        num_large_requests: Of 64 KB or more, made whole, at most.
        num_read_bytes: Taken from its socket, at most.
        num_written_bytes: Of large answers, moved towards its socket, at most.

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
        num_requests: Begun in its turn.
        num_bytes: Received in it.
        has_more: Whether something was left undone.

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
        shared_at_s: When last a connection with little to do had a turn after another
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
        current: The turn of whoever is next.
        are_short: Whether there is somebody to be kept from waiting.
        last: Who had the last one; kept by those who have them.

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
        """Takes note that one with little to do has had a turn after another one."""
        self._shared_at_s = now_s
        if not self.are_short:
            self.look(now_s)

    def forget(self, who: object) -> None:
        """Takes note that somebody is gone."""
        if self.last is who:
            self.last = None

    def look(self, now_s: float) -> None:
        """Makes turns long again when nobody shared for a while."""
        self.current = turn_of(self._longest, self._shared_at_s, now_s)
        self.are_short = self.current is not self._longest
