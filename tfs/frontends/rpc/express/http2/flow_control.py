"""Receive windows, granted out of one budget for the whole server.

Windows are granted per connection: stream windows are as wide as HTTP/2 allows, so a
connection's window is the only limit to what its client may send. Every byte that a
client may still send, and every byte that it has sent and that is still in use, is
counted in ``ReceiveBudget.used_bytes``. A byte that arrives only moves from one kind to
the other; only granting more asks the budget. The length that a message claims to have
is never a reason to grant or allocate anything.

A window grows with its use: fourfold each time that half of it has been used. What is
granted can never be taken back, so if each new connection got as much as an upload
wants, a few hundred idle ones would use up everything.

The first 65,535 bytes of each connection are given by HTTP/2 and cannot be refused.
They count, but may take the budget over its limit, by at most 64 KB per connection;
nothing else may. So that thousands of idle clients leave something for uploads, these
first windows reduce what others get by no more than half of the budget, and do not
reduce what the favoured connection (below) gets.

Uploads that together exceed the budget could each wait for bytes that only the end of
another one would release. So a part of the budget is not open to all
(:mod:`~tfs.frontends.rpc.express.http2.headroom`): it is a reserve, lent to one
connection at a time, the favoured one, which can then finish, release its bytes, and
make way.

Small requests never wait for room: a connection that holds next to nothing gets its
first 65,535 bytes again, whatever others hold.
"""

from __future__ import annotations

from typing import Final

from tfs.core.errors import ResourceExhausted, ServingError
from tfs.frontends.rpc.express.http2.headroom import Headroom
from tfs.frontends.rpc.frames import (
    DEFAULT_WINDOW,
    ConnectionFault,
    ErrorCode,
    window_update,
)

LEAST_GRANT: Final = 16_384
"""The least number of bytes granted; for less, the frames would cost too much."""

_LARGEST_LOAN: Final = 2 << 20  # bytes of the reserve lent at a time
# At first, and then as much as was lent before in the same turn: what a slow client was
# lent, and does not use up in its turn, stays with it.
_FIRST_LOAN: Final = 524_288
_MAX_STREAMS: Final = 16_384
_LEAST_STREAMS: Final = 32
_MORE_THAN_ENOUGH: Final = 3
# The first windows that HTTP/2 gives count up to this many bytes, even if half of the
# budget is less.
_LEAST_COUNTED: Final = 1 << 20


class ReceiveBudget:
    """The bytes that clients may send, or have sent and that are in use. Loop-confined.

    Attributes:
        limit_bytes: The server's ``--max_receive_bytes``.
        num_windows: Open connections; each has one window.
        max_streams_each: Most streams that a connection may have open. A stream takes a
            kilobyte and costs its client thirty bytes: a thousand on each of a thousand
            connections took half a gigabyte.
        told_streams_each: The limit of streams that clients are told. It is a power of
            two, so that it rarely changes, and grows again only if there is far more
            room.
        num_large_blocks: Unfinished header blocks that are longer than any header list
            that is accepted.
        used_bytes: Bytes of windows granted, and of requests held.
        uploaded_bytes: Bytes of large requests that have arrived whole since the start.
        headroom: The part of the limit that is open to all, and what unread answers
            take of it.

    Args:
        limit_bytes: The server's ``--max_receive_bytes``.
        headroom: Shared with the backlog of unread answers. By default the budget makes
            its own.

    """

    __slots__ = (
        "headroom",
        "limit_bytes",
        "max_streams_each",
        "num_large_blocks",
        "num_windows",
        "told_streams_each",
        "uploaded_bytes",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int, headroom: Headroom | None = None) -> None:
        if limit_bytes < DEFAULT_WINDOW:
            raise ValueError(f"receive budget below one window: {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.headroom = headroom or Headroom(limit_bytes)
        self.num_large_blocks = 0
        self.num_windows = 0
        self.max_streams_each = self.told_streams_each = _MAX_STREAMS
        self.used_bytes = 0
        self.uploaded_bytes = 0

    def grant(self, num_bytes: int) -> None:
        """Counts bytes that a client may now send in addition."""
        self.used_bytes += num_bytes

    @property
    def largest_request_bytes(self) -> int:
        """The longest message that could be received if nothing else were."""
        return max(self.limit_bytes - DEFAULT_WINDOW, DEFAULT_WINDOW)

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody has taken, including the reserve; at least 0."""
        return self._free_bytes(self.limit_bytes, _LEAST_COUNTED)

    @property
    def waits_for_readers(self) -> bool:
        """Whether nothing may be granted to anybody until clients read their answers.

        That is so while unread answers take all that is open, or while whole requests
        that wait for readers take half of that: further requests would wait as well.
        """
        headroom = self.headroom
        return headroom.is_full or (
            2 * headroom.waiting_bytes >= headroom.open_to_answers_bytes
        )

    @property
    def free_to_favoured_bytes(self) -> int:
        """What may still be granted to whoever is favoured."""
        return 0 if self.waits_for_readers else self.free_bytes

    @property
    def free_to_all_bytes(self) -> int:
        """Bytes that may still be granted to connections not favoured; at least 0."""
        open_bytes = self.headroom.open_bytes
        most_bytes = max(open_bytes // 2, _LEAST_COUNTED)
        return self._free_bytes(open_bytes - self.headroom.unread_bytes, most_bytes)

    def _free_bytes(self, limit_bytes: int, most_bytes: int) -> int:
        """Returns what is free if HTTP/2's first windows count up to ``most_bytes``."""
        forgiven_bytes = max(0, self.num_windows * DEFAULT_WINDOW - most_bytes)
        return max(0, limit_bytes - self.used_bytes + forgiven_bytes)

    def count_windows(self, num_more: int) -> None:
        """Counts connections that were opened, or with a negative number closed."""
        self.num_windows += num_more
        share = max(_LEAST_STREAMS, _MAX_STREAMS // max(1, self.num_windows))
        self.max_streams_each = share
        told = self.told_streams_each
        if share < told or share > told * _MORE_THAN_ENOUGH:
            self.told_streams_each = 1 << share.bit_length() - 1

    def release(self, num_bytes: int) -> None:
        """Notes that held bytes are no longer needed."""
        self.used_bytes -= num_bytes


class ReceiveWindow:
    """One connection's window for what its client sends. Loop-confined.

    Attributes:
        size: Bytes that the client may still send.
        target: Bytes that the window is refilled to; never beyond ``preferred``.
        is_starved: Whether the last refill was refused for want of budget, and
            next to nothing is left of what was granted before.
        reserve_bytes: Bytes of the budget's reserve that it may still be granted.

    """

    __slots__ = (
        "_budget",
        "_is_closed",
        "_lent_bytes",
        "_preferred",
        "is_starved",
        "low_water",
        "reserve_bytes",
        "size",
        "target",
    )

    # A window takes at most this fraction (1/8) of the free budget, so that the first
    # connections leave some.
    _LARGEST_SHARE: Final = 8
    _GROWTH: Final = 4

    def __init__(self, budget: ReceiveBudget, preferred: int) -> None:
        self._budget = budget
        self.size = DEFAULT_WINDOW
        self._is_closed = False
        budget.count_windows(1)
        budget.used_bytes += DEFAULT_WINDOW
        self._preferred = preferred
        self.target = DEFAULT_WINDOW
        self.low_water = self.target // 2
        self.is_starved = False
        self.reserve_bytes = 0
        self._lent_bytes = 0  # in this turn

    def begin_turn(self) -> None:
        """Begins or ends a turn with the reserve; nothing of it may be granted yet."""
        self.reserve_bytes = self._lent_bytes = 0

    def receive(self, num_bytes: int) -> None:
        """Takes note of ``num_bytes`` of DATA payload, padding included.

        Raises:
            ConnectionFault: More than was granted.

        """
        if num_bytes > self.size:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the window allows"
            )
        self.size -= num_bytes

    def refill(self) -> bytes:
        """Returns the WINDOW_UPDATE to send, empty if none is due or affordable."""
        reserve_bytes = self.reserve_bytes
        is_due = self.target - self.size >= self.low_water
        if not is_due and not reserve_bytes:
            return b""
        budget = self._budget
        free_bytes = free_to_all_bytes = budget.free_to_all_bytes
        if self.target < self._preferred:
            # The target does not grow by the reserve, because what is left of a wide
            # window stays with its client.
            share = free_to_all_bytes // self._LARGEST_SHARE
            grown = min(self._GROWTH * self.target, self._preferred, share)
            self.target = max(self.target, grown)
            self.low_water = self.target // 2
        wanted = self.target - self.size if is_due else 0
        if reserve_bytes:
            # It is not lent all at once, because the upload has to stop if its client
            # reads no answers.
            loan = min(max(self._lent_bytes, _FIRST_LOAN), _LARGEST_LOAN)
            most = min(reserve_bytes, max(self.target, loan) - self.size)
            lent = min(most, budget.free_to_favoured_bytes)
            if lent > min(wanted, free_bytes):
                wanted = free_bytes = lent
                self.reserve_bytes -= lent
                self._lent_bytes += lent
        if wanted <= 0:
            self.is_starved = self.size < LEAST_GRANT
            return b""
        granted = min(wanted, free_bytes)
        # A trickle would cost more frames than it moves bytes.
        if granted < wanted and granted < LEAST_GRANT:
            self.is_starved = self.size < LEAST_GRANT
            return b""
        self.is_starved = False
        self.size += granted
        budget.grant(granted)
        return window_update(0, granted)

    def probe(self) -> bytes:
        """Returns a very small WINDOW_UPDATE, to see whether the client uses it."""
        self.size += LEAST_GRANT
        self._budget.grant(LEAST_GRANT)
        return window_update(0, LEAST_GRANT)

    @property
    def has_own_to_refill(self) -> bool:
        """Whether :meth:`refill_own` may have something to grant."""
        return DEFAULT_WINDOW - self.size >= LEAST_GRANT

    def refill_own(self, held_bytes: int) -> bytes:
        """Does as :meth:`refill`, up to HTTP/2's first window, whatever others take.

        Args:
            held_bytes: Bytes of requests that the connection holds.

        """
        granted = DEFAULT_WINDOW - self.size - held_bytes
        if granted < LEAST_GRANT:
            return b""
        self.is_starved = False
        self.size += granted
        self._budget.grant(granted)
        return window_update(0, granted)

    def close(self) -> None:
        """Gives back what was granted and never used; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.count_windows(-1)
        self._budget.used_bytes -= self.size
        self.size = 0


def budget_used_up() -> ServingError:
    """Returns the error of a request that the receive budget has no room for."""
    return ResourceExhausted("the server's receive budget is used up; retry later")


def too_slow() -> ServingError:
    """Returns the error of a slow request whose room faster ones wait for."""
    return ResourceExhausted(
        "the request arrives too slowly while others wait for the server's receive "
        "budget; retry later"
    )
