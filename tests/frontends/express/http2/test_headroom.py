"""What is open to requests and unread answers grows for crowds, not for attacks."""

from __future__ import annotations

import itertools

import pytest

from tfs.frontends.rpc.express.http2.headroom import Headroom

MIB = 1 << 20


@pytest.mark.parametrize(
    ("limit_bytes", "open_bytes", "to_answers_bytes"),
    [
        (512 * MIB, 32 * MIB, 32 * MIB),
        (16 * MIB, 4 * MIB, 8 * MIB),
        (1 * MIB, MIB // 4, 8 * MIB),
    ],
)
def test_a_sixteenth_of_the_limit_is_open_at_first(
    limit_bytes: int, open_bytes: int, to_answers_bytes: int
) -> None:
    """A sixteenth or 8 MB; of a small limit requests get no more than a quarter."""
    headroom = Headroom(limit_bytes)
    assert headroom.open_bytes == open_bytes
    assert headroom.open_to_answers_bytes == to_answers_bytes


def test_a_crowd_of_good_clients_gets_more_and_more() -> None:
    """After twenty seconds the room grows step by step, up to three quarters."""
    headroom = Headroom(64 * MIB)
    granted = itertools.count(0, 4 * MIB)
    for _ in range(20):
        headroom.look(True, 0, next(granted))
    assert headroom.open_bytes == 8 * MIB
    headroom.look(True, 0, next(granted))
    assert headroom.open_bytes == 9 * MIB
    for _ in range(100):
        headroom.look(True, 0, next(granted))
    assert headroom.open_bytes == 48 * MIB
    for _ in range(100):
        headroom.look(False, 0, next(granted))
    assert headroom.open_bytes == 8 * MIB


def test_readers_that_move_get_more_before_long() -> None:
    """All large requests wait for them, and who does not move is gone in a second."""
    headroom = Headroom(64 * MIB)
    headroom.unread_bytes = 7 * MIB
    for _ in range(7):
        headroom.look(True, 0, 0)
    assert headroom.open_bytes == 8 * MIB
    headroom.look(True, 0, 0)
    assert headroom.open_bytes == 9 * MIB


def test_an_attack_gets_no_more_than_at_first() -> None:
    """Whoever is cut off now and then, while others wait, are no good clients."""
    headroom = Headroom(64 * MIB)
    for second in range(100):
        headroom.look(True, second // 15, second * 4 * MIB)
        assert headroom.open_bytes == 8 * MIB


def test_who_sends_next_to_nothing_gets_no_more() -> None:
    """The room does not grow for clients that need over 16 s to use what is open."""
    headroom = Headroom(64 * MIB)
    for second in range(100):
        headroom.look(True, 0, second * (MIB // 2 - 1))
        assert headroom.open_bytes == 8 * MIB


def test_room_is_for_answers_as_long_as_their_requests() -> None:
    """A request that is longer than all that is open has its turn when little waits."""
    headroom = Headroom(64 * MIB)
    assert headroom.has_room(100 * MIB)
    headroom.unread_bytes = 3 * MIB
    assert headroom.has_room(5 * MIB)
    assert not headroom.has_room(6 * MIB)
    headroom.begun_bytes = 1 * MIB
    assert not headroom.has_room(5 * MIB)
    headroom.begun_bytes = 0
    headroom.unread_bytes = 2 * MIB
    assert headroom.has_room(100 * MIB)
