"""Who may take how much of the loop, and when."""

from __future__ import annotations

from tfs.frontends.rpc.express.turns import (
    SHARED_S,
    SHORT,
    Turn,
    Turns,
    is_busy,
    turn_of,
)

LONGEST = Turn(128, 128, 262_144, 2 << 20)
TINY = Turn(4, 4, 1000, 1000)


def test_turns_are_long_until_one_with_little_to_do_is_seen() -> None:
    """Large batches and few system calls, where nobody waits for them."""
    assert turn_of(LONGEST, None, 0.0) is LONGEST
    assert turn_of(LONGEST, 5.0, 5.0 + SHARED_S) == SHORT
    assert turn_of(LONGEST, 5.0, 5.1 + SHARED_S) is LONGEST


def test_a_short_turn_is_never_longer_than_the_longest() -> None:
    """Whoever configured little gets no more."""
    assert turn_of(TINY, 0.0, 0.0) == Turn(4, 1, 1000, 1000)


def test_a_connection_is_busy_from_a_short_turn_on() -> None:
    """Requests, bytes, or something left over each make a connection busy."""
    assert not is_busy(SHORT.num_requests - 1, SHORT.num_read_bytes - 1, False)
    assert is_busy(SHORT.num_requests, 0, False)
    assert is_busy(0, SHORT.num_read_bytes, False)
    assert is_busy(0, 0, True)


def test_turns_become_short_at_once_and_long_after_a_while() -> None:
    """Every share puts the end off."""
    turns = Turns(LONGEST)
    assert turns.current is LONGEST
    turns.share(0.0)
    assert turns.are_short
    assert turns.current == SHORT
    turns.share(5.0)
    turns.look(5.0 + SHARED_S)
    assert turns.are_short
    turns.look(5.1 + SHARED_S)
    assert not turns.are_short
    assert turns.current is LONGEST


def test_who_is_gone_is_nobodys_neighbour() -> None:
    """A client that comes back over a new connection shares with nobody."""
    turns = Turns(LONGEST)
    one, other = object(), object()
    turns.last = one
    turns.forget(other)
    assert turns.last is one
    turns.forget(one)
    assert turns.last is None
