"""One budget for the memory that clients can make the server take.

Whatever a client causes to be kept counts: its streams, requests from their first byte
until they are answered, requests that are long or ask for long answers
before their bytes are there, and answers until the kernel has taken them.

* What waits for clients (unfinished requests, unread answers) may take fifteen
  sixteenths of the limit. The rest is for requests that are whole, so that a server full
  of the former answers the others.
* Long requests and answers are admitted, whole, before they take anything: three
  quarters of the limit together, a quarter for each connection, or one alone; beside
  what is taken already they leave a sixteenth to short ones. A long request counts
  twice, because its answer may be as long. What is not admitted waits in one queue, in
  the order in which it came.
* A long request that is whole and takes more (to be unpacked, read or answered) goes
  before that queue with what it does not count yet. Once nothing else is admitted it takes
  what is left: no other can end before it, and half of what counts for whole ones is for
  their answers, which are not there yet.
* What there is no room for is refused with RESOURCE_EXHAUSTED.

Connections take 4 KB each beside that, and their number is limited: a server full of what
clients began takes new ones, and answers them.

Rejected: granting windows little by little, and lending a reserve to one client at a
time. Requests that each have a part of what they need wait for each other, and it took
eleven mechanisms to find out which of them would go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tfs.core.errors import ResourceExhausted, ServingError

LONG_BYTES: Final = 65_536
"""Requests and answers of this many bytes are admitted before they take memory."""

_LEAST_WINDOW: Final = 1024
_WINDOWS: Final = 4096  # first windows of streams that the limit has room for


@dataclass(slots=True, eq=False)
class Account:
    """What was admitted for one connection.

    Attributes:
        admitted_bytes: Bytes of its long requests and answers.

    """

    admitted_bytes: int = 0


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the queue, and then what was admitted.

    Attributes:
        num_bytes: How much was asked for.
        since_s: When it was asked for.
        is_whole: Whether it is of a long request that is whole.
        is_admitted: Whether it counts by now.

    """

    _account: Account
    num_bytes: int
    since_s: float
    _go_on: Callable[[], None] | None
    is_whole: bool = False
    is_admitted: bool = False
    _counted_bytes: int = 0


class Holder(Protocol):
    """A request, as the budget sees it.

    Attributes:
        held_bytes: What it counts, beside what was admitted.
        ticket: What was admitted for it, or waits to be.

    """

    held_bytes: int
    ticket: Ticket | None


class MemoryBudget:
    """Counts what clients take, and admits or queues what is long. Loop-confined.

    Attributes:
        limit_bytes: The server's ``--max_receive_bytes``.
        num_admitted: How much that is long was admitted since the start.
        waiting_limit_bytes: The most that there may be when something is added that
            waits for its client.
        window_bytes: The first window of each stream: more of a message is sent only
            once it was admitted.
        used_bytes: What is taken now. Whoever takes less later says so by
            :meth:`release`.

    Args:
        limit_bytes: The server's ``--max_receive_bytes``.
        post: Runs a function on the loop, soon.
        on_scarcity: Called on the loop when there is no room for something, whichever
            connection asks, and while that goes on.

    """

    def __init__(
        self,
        limit_bytes: int,
        post: Callable[[Callable[[], None]], None],
        on_scarcity: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.waiting_limit_bytes = limit_bytes - limit_bytes // 16
        self.window_bytes = min(
            LONG_BYTES - 1, max(_LEAST_WINDOW, limit_bytes // _WINDOWS)
        )
        self.used_bytes = 0
        self.num_admitted = 0
        self._post = post
        self._on_scarcity = on_scarcity
        self._admitted_bytes = 0
        self._num_taken = 0  # tickets that count now
        self._whole: dict[Ticket, None] = {}  # waits before all others
        self._queue: dict[Ticket, None] = {}
        self._is_advancing = False

    @property
    def largest_bytes(self) -> int:
        """The longest message that is admitted, when it is alone."""
        return self.limit_bytes - self.limit_bytes // 8

    def with_answer(self, num_bytes: int) -> int:
        """Returns what a long request takes with its answer, which may be as long."""
        return min(2 * num_bytes, self.largest_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether so much more may wait for a client."""
        return self.used_bytes + num_bytes <= self.waiting_limit_bytes

    def release(self, num_bytes: int) -> None:
        """Notes that so much is no longer taken."""
        self.used_bytes -= num_bytes
        if self._whole or self._queue:
            self._advance_soon()

    def admit(
        self,
        account: Account,
        num_bytes: int,
        now_s: float,
        go_on: Callable[[], None],
        *,
        is_whole: bool = False,
    ) -> Ticket:
        """Admits something long, or lets it wait for its turn.

        Args:
            account: Whose it is.
            num_bytes: How long it is.
            now_s: The time.
            go_on: Called, on the loop, once it is admitted, if that is not at once.
            is_whole: Whether it is what a long request takes that is whole.

        Returns:
            What was admitted, if its ``is_admitted`` says so. It is given back by
            :meth:`give_back`, also if it still waits.

        Raises:
            ResourceExhausted: It is longer than ``largest_bytes``, so its turn would
                never come.

        """
        if num_bytes > self.largest_bytes:
            raise used_up()
        ticket = Ticket(account, num_bytes, now_s, go_on, is_whole)
        is_next = not self._whole and (is_whole or not self._queue)
        if is_next and self._fits(ticket):
            ticket._go_on = None  # it keeps a call whose handler has let go of it
            self._take(ticket)
        else:
            (self._whole if is_whole else self._queue)[ticket] = None
            if self._fits_all(ticket):
                self._advance_soon()  # past what waits for its own connection's
            else:
                self._on_scarcity()
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        """Gives back what was admitted, or leaves the queue; idempotent."""
        ticket._go_on = None
        self._whole.pop(ticket, None)
        self._queue.pop(ticket, None)
        if ticket.is_admitted:
            ticket.is_admitted = False
            self._num_taken -= 1
            ticket._account.admitted_bytes -= ticket._counted_bytes
            self._admitted_bytes -= ticket._counted_bytes
            self.used_bytes -= ticket._counted_bytes
        if self._whole or self._queue:
            self._advance_soon()

    # -- of one request ----------------------------------------------------------------

    def hold(self, holder: Holder, num_bytes: int) -> None:
        """Counts what a request takes in memory."""
        self.used_bytes += num_bytes
        holder.held_bytes += num_bytes

    def settle(self, holder: Holder) -> None:
        """Counts a long message that is whole as any other."""
        ticket, holder.ticket = holder.ticket, None
        if ticket is not None:
            self.hold(holder, ticket._counted_bytes)
            self.give_back(ticket)

    def release_all(self, holder: Holder) -> None:
        """Gives back all that a request counts; idempotent."""
        if holder.ticket is not None:
            self.give_back(holder.ticket)
            holder.ticket = None
        held_bytes, holder.held_bytes = holder.held_bytes, 0
        self.release(held_bytes)

    def take_room(
        self,
        holder: Holder,
        account: Account,
        num_bytes: int,
        now_s: float,
        go_on: Callable[[], None],
        *,
        sent_bytes: int,
        is_all: bool,
    ) -> bool:
        """Takes room for what a request of ``sent_bytes`` takes that is whole.

        What a long one counts already is part of what it may take. For ``num_bytes`` and
        ``is_all`` see :meth:`tfs.core.call.Call.take_room`, for the rest ``admit``.
        """
        largest_bytes, is_long = self.largest_bytes, sent_bytes >= LONG_BYTES
        if is_all:
            num_bytes = min(num_bytes, largest_bytes)
        elif num_bytes > largest_bytes:
            raise used_up()
        if num_bytes < LONG_BYTES or (is_all and num_bytes <= holder.held_bytes):
            return True
        if is_long:
            num_bytes = min(num_bytes, max(0, largest_bytes - holder.held_bytes))
        elif not is_all:  # it is there itself, joined with others, and as an answer
            num_bytes = min(3 * num_bytes, largest_bytes)
        ticket = holder.ticket
        if ticket is not None:
            if ticket.is_admitted and ticket.num_bytes >= num_bytes:
                return True
            self.give_back(ticket)  # it must not wait for itself
        holder.ticket = self.admit(account, num_bytes, now_s, go_on, is_whole=is_long)
        return holder.ticket.is_admitted

    def may_answer(self, holder: Holder, num_bytes: int, unread_bytes: int) -> bool:
        """Returns whether an answer of that length may wait for its client.

        It takes the place of its request, and of what was admitted for it. To be asked
        about answers that are long, or that come while others are unread.
        """
        if unread_bytes and unread_bytes + num_bytes > self.limit_bytes // 4:
            return False
        num_bytes -= holder.held_bytes
        if holder.ticket is not None and holder.ticket.is_admitted:
            num_bytes -= holder.ticket.num_bytes
        return self.has_room(num_bytes)

    # -- within ------------------------------------------------------------------------

    def _fits(self, ticket: Ticket) -> bool:
        account, num_bytes = ticket._account, ticket.num_bytes
        return self._fits_all(ticket) and (
            ticket.is_whole
            or not account.admitted_bytes
            or account.admitted_bytes + num_bytes <= self.limit_bytes // 4
        )

    def _fits_all(self, ticket: Ticket) -> bool:
        """Whether there is room, whatever its connection has by now."""
        num_bytes, admitted_bytes = ticket.num_bytes, self._admitted_bytes
        if ticket.is_whole and not self._num_taken:
            return True
        return (
            self.used_bytes <= self.limit_bytes // 16
            or self.used_bytes + num_bytes <= self.largest_bytes
        ) and (
            not admitted_bytes
            or admitted_bytes + num_bytes <= self.limit_bytes * 3 // 4
        )

    def _take(self, ticket: Ticket) -> None:
        counted_bytes = ticket.num_bytes
        if ticket.is_whole:
            left_bytes = max(0, self.largest_bytes - self.used_bytes)
            counted_bytes = min(counted_bytes, left_bytes)
        ticket.is_admitted = True
        ticket._counted_bytes = counted_bytes
        self._num_taken += 1
        self.num_admitted += 1
        ticket._account.admitted_bytes += counted_bytes
        self._admitted_bytes += counted_bytes
        self.used_bytes += counted_bytes

    def _advance_soon(self) -> None:
        if not self._is_advancing:
            self._is_advancing = True
            self._post(self._advance)

    def _advance(self) -> None:
        """Admits what there is room for by now, the first in the queue first."""
        self._is_advancing = False
        for ticket in [*self._whole, *self._queue]:
            queue = self._whole if ticket.is_whole else self._queue
            if ticket not in queue:
                continue  # the turn of another one has ended it
            if not self._fits_all(ticket):
                self._on_scarcity()
                return
            if self._fits(ticket):
                del queue[ticket]
                self._take(ticket)
                go_on, ticket._go_on = ticket._go_on, None
                if go_on is not None:
                    go_on()


def used_up() -> ServingError:
    """Returns the error of what there is no room for."""
    return ResourceExhausted(
        "the server's memory for requests and answers is used up "
        "(--max_receive_bytes); retry later"
    )


_LEAST_BYTES: Final = 65_536


class Progress:
    """How far something has come, and since when it is no further. Loop-confined."""

    __slots__ = ("_num_bytes", "_since_s")

    def __init__(self, num_bytes: int, now_s: float) -> None:
        self._num_bytes = num_bytes
        self._since_s = now_s

    def move(self, num_bytes: int, now_s: float) -> float:
        """Notes how far it has come; returns for how long it made no progress."""
        if num_bytes - self._num_bytes >= _LEAST_BYTES:
            self._num_bytes = num_bytes
            self._since_s = now_s
        return now_s - self._since_s
