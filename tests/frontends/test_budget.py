"""One budget for what clients make the server keep: who is admitted, who waits, when."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs.core.errors import ResourceExhausted
from tfs.frontends.budget import LONG_BYTES, Account, MemoryBudget, Ticket

MIB = 1 << 20
LIMIT = 64 * MIB


class Bed:
    """A budget, what it posted, and what it admitted later."""

    def __init__(self, limit_bytes: int = LIMIT) -> None:
        self.posted: list[Callable[[], None]] = []
        self.num_scarcities = 0
        self.budget = MemoryBudget(limit_bytes, self.posted.append, self._note)
        self.admitted: list[str] = []

    def admit(
        self,
        account: Account,
        num_bytes: int,
        name: str = "",
        *,
        is_whole: bool = False,
    ) -> Ticket:
        return self.budget.admit(
            account,
            num_bytes,
            0.0,
            lambda: self.admitted.append(name),
            is_whole=is_whole,
        )

    def run(self) -> None:
        while self.posted:
            self.posted.pop(0)()

    def _note(self) -> None:
        self.num_scarcities += 1


def test_what_is_long_is_admitted_or_waits_in_the_order_of_coming() -> None:
    """Three quarters of the limit are for it; who comes later passes nobody."""
    bed = Bed()
    first = [bed.admit(Account(), 12 * MIB) for _ in range(4)]
    assert all(ticket.is_admitted for ticket in first)
    large = bed.admit(Account(), 12 * MIB, "large")
    small = bed.admit(Account(), MIB, "small")
    assert not large.is_admitted
    assert not small.is_admitted
    bed.budget.give_back(first[0])
    bed.run()
    assert bed.admitted == ["large"]
    bed.budget.give_back(first[1])
    bed.run()
    assert bed.admitted == ["large", "small"]


def test_a_connection_has_a_quarter_or_one_alone() -> None:
    """What it asks for beyond waits for its own, and holds up no other connection."""
    bed = Bed()
    greedy, other = Account(), Account()
    first = bed.admit(greedy, 40 * MIB)
    assert first.is_admitted
    waiting = bed.admit(greedy, MIB, "greedy")
    assert not waiting.is_admitted
    passing = bed.admit(other, MIB, "other")
    bed.run()
    assert passing.is_admitted
    assert bed.admitted == ["other"]
    bed.budget.give_back(first)
    bed.run()
    assert waiting.is_admitted


def test_a_whole_request_goes_first_and_takes_what_is_left() -> None:
    """What is full of whole requests would otherwise wait for ever: one of them goes on."""
    bed = Bed()
    bed.budget.used_bytes = 50 * MIB  # of three that are whole
    waits = bed.admit(Account(), 20 * MIB, "upload")
    first = bed.admit(Account(), 20 * MIB, "first", is_whole=True)
    second = bed.admit(Account(), 20 * MIB, "second", is_whole=True)
    assert (waits.is_admitted, first.is_admitted, second.is_admitted) == (0, 1, 0)
    assert bed.budget.used_bytes == bed.budget.largest_bytes
    assert bed.budget.has_room(LIMIT // 16)
    bed.budget.give_back(first)
    bed.run()
    assert bed.admitted == ["second"]
    bed.budget.give_back(second)
    bed.budget.release(30 * MIB)
    bed.run()
    assert bed.admitted == ["second", "upload"]
    bed.budget.give_back(waits)
    assert bed.budget.used_bytes == 20 * MIB


@dataclass
class Request:
    """What counts for one request."""

    held_bytes: int = 0
    ticket: Ticket | None = None


def test_a_long_request_asks_for_what_it_does_not_count_and_goes_first() -> None:
    """However much several hold that all take more, to be read or answered, one goes on."""
    bed, account = Bed(), Account()
    upload = bed.admit(Account(), 20 * MIB, "upload")
    requests = [Request(), Request(), Request()]
    for request in requests:
        bed.budget.hold(request, 18 * MIB)
    waiting = bed.admit(Account(), 20 * MIB, "waiting")
    bed.budget.give_back(upload)

    def ask(index: int, num_bytes: int, *, is_all: bool) -> bool:
        return bed.budget.take_room(
            requests[index],
            account,
            num_bytes,
            0.0,
            lambda: bed.admitted.append(str(index)),
            sent_bytes=9 * MIB,
            is_all=is_all,
        )

    assert ask(0, 18 * MIB, is_all=True)  # it counts for its answer already
    assert ask(0, 40 * MIB, is_all=True)
    assert ask(0, 40 * MIB, is_all=True)  # as it has
    assert not ask(1, 10 * MIB, is_all=False)
    assert not ask(2, 60 * MIB, is_all=True)
    assert bed.budget.used_bytes == bed.budget.largest_bytes
    for index in (0, 1, 2):
        bed.run()
        assert bed.admitted == ["1", "2"][:index]
        bed.budget.release_all(requests[index])
    bed.run()
    assert waiting.is_admitted
    assert bed.budget.used_bytes == 20 * MIB


def test_a_short_request_that_takes_more_waits_like_any_other() -> None:
    """What it grows to is there itself, joined with others and as an answer."""
    bed, account = Bed(), Account()
    request, other = Request(), Request()

    def ask(asking: Request, num_bytes: int, *, is_all: bool = False) -> bool:
        return bed.budget.take_room(
            asking, account, num_bytes, 0.0, lambda: None, sent_bytes=40, is_all=is_all
        )

    assert ask(request, LONG_BYTES - 1)
    assert bed.budget.used_bytes == 0
    assert ask(request, MIB)
    assert bed.budget.used_bytes == 3 * MIB
    assert ask(request, 2 * MIB, is_all=True)
    assert bed.budget.used_bytes == 3 * MIB
    assert not ask(other, 60 * MIB, is_all=True)
    with pytest.raises(ResourceExhausted):
        ask(request, 60 * MIB)
    bed.budget.release_all(other)
    bed.budget.settle(request)
    assert (request.held_bytes, request.ticket) == (3 * MIB, None)
    bed.budget.release_all(request)
    assert bed.budget.used_bytes == 0
    assert account.admitted_bytes == 0


def test_the_longest_message_is_admitted_alone() -> None:
    """Seven eighths of the limit, if nothing long is there."""
    bed = Bed()
    assert bed.admit(Account(), bed.budget.largest_bytes).is_admitted


def test_what_is_long_leaves_room_for_what_is_short() -> None:
    """Whole requests that wait for their answers do not count as admitted any more."""
    bed = Bed()
    bed.budget.used_bytes = bed.budget.largest_bytes - MIB
    assert bed.admit(Account(), MIB).is_admitted
    assert not bed.admit(Account(), MIB).is_admitted
    assert bed.budget.has_room(LIMIT // 16)


def test_what_waits_for_clients_leaves_room_for_whole_requests() -> None:
    """The last sixteenth is not for unfinished requests and unread answers."""
    bed = Bed()
    bed.budget.used_bytes = LIMIT - LIMIT // 16 - 100
    assert bed.budget.has_room(100)
    assert not bed.budget.has_room(101)
    bed.budget.release(1)
    assert bed.budget.has_room(101)


def test_who_leaves_the_queue_is_not_admitted() -> None:
    """A call that ended while it waited takes nothing, also if its turn has come."""
    bed = Bed()
    first = bed.admit(Account(), 40 * MIB)
    waiting = bed.admit(Account(), 40 * MIB, "waiting")
    bed.budget.give_back(first)
    bed.budget.give_back(waiting)
    bed.run()
    assert bed.admitted == []
    assert bed.budget.used_bytes == 0


def test_who_has_to_wait_is_told_as_scarcity() -> None:
    """The owner hears when something begins to wait, and while it goes on waiting."""
    bed = Bed()
    first, second = bed.admit(Account(), 24 * MIB), bed.admit(Account(), 24 * MIB)
    assert bed.num_scarcities == 0
    bed.admit(Account(), 48 * MIB)
    assert bed.num_scarcities == 1
    bed.budget.give_back(first)
    bed.run()
    assert bed.num_scarcities == 2
    bed.budget.give_back(second)
    bed.run()
    num_until_admitted = bed.num_scarcities
    bed.budget.used_bytes += 1
    bed.budget.release(1)
    bed.run()
    assert bed.num_scarcities == num_until_admitted


def test_first_windows_follow_the_limit() -> None:
    """A small server lets clients send little before it admits them."""
    assert Bed(256 * MIB).budget.window_bytes == 65_535
    assert Bed(64 * MIB).budget.window_bytes == 16_384
    assert Bed(MIB).budget.window_bytes == 1024


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 50), st.booleans(), st.booleans()),
        max_size=60,
    )
)
def test_nothing_is_lost_and_nobody_waits_for_ever(
    asked: list[tuple[int, int, bool, bool]],
) -> None:
    """Whatever is asked for and given back: the sums are right, and all get their turn."""
    bed = Bed()
    accounts = [Account() for _ in range(4)]
    open_tickets: list[Ticket] = []
    for index, (who, num, ends, is_whole) in enumerate(asked):
        made = bed.admit(accounts[who], num * MIB, str(index), is_whole=is_whole)
        open_tickets.append(made)
        if ends:
            bed.budget.give_back(open_tickets.pop(index % len(open_tickets)))
        bed.run()
        admitted = [each for each in open_tickets if each.is_admitted]
        assert bed.budget.used_bytes <= sum(each.num_bytes for each in admitted)
        assert bed.budget.used_bytes <= bed.budget.waiting_limit_bytes
        assert admitted or not open_tickets
    while open_tickets:
        ticket = next(each for each in open_tickets if each.is_admitted)
        open_tickets.remove(ticket)
        bed.budget.give_back(ticket)
        bed.run()
    assert bed.budget.used_bytes == 0
    assert all(account.admitted_bytes == 0 for account in accounts)


def test_what_was_admitted_at_once_keeps_nobody() -> None:
    """A call that its handler drops is gone, though what it was given still counts."""

    class Call:
        def go_on(self) -> None: ...

    bed = Bed()
    call = Call()
    kept = weakref.ref(call)
    ticket = bed.budget.admit(Account(), MIB, 0.0, call.go_on)
    del call
    assert ticket.is_admitted
    assert kept() is None


def test_what_could_never_be_admitted_is_refused() -> None:
    """Its turn would not come, whatever ended before it."""
    bed = Bed()
    assert bed.admit(Account(), bed.budget.largest_bytes).is_admitted
    with pytest.raises(ResourceExhausted):
        Bed().admit(Account(), bed.budget.largest_bytes + 1)
