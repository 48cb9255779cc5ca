"""tfs.handlers.filled_room: who takes room, and who waits for it."""

from __future__ import annotations

import functools

import pytest

from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.filled_room import FilledRoom, FillLimit, NoRoomError
from tfs.testing.fake_call import FakeCall

_MB = 1 << 20


class Asker:
    """A request that asks for room, and again when it is told to."""

    def __init__(self, limit: FillLimit, num_bytes: int, steps: int = 1) -> None:
        self.room = FilledRoom(limit)
        self.has_room = False
        self._num_bytes = num_bytes
        self._steps = steps
        self.ask()

    def ask(self, waited: bool = False) -> None:
        try:
            for step in range(1, self._steps + 1):
                self.room.take(self._num_bytes * step // self._steps)
        except NoRoomError as full:
            full.room.wait(functools.partial(self.ask, True))
            return
        self.has_room = True
        if waited:
            self.room.pass_on()


def test_requests_wait_in_order_of_their_coming() -> None:
    """A later request that would fit waits too, or a larger one would wait for ever."""
    limit = FillLimit(10 * _MB)
    askers = [Asker(limit, num_bytes * _MB) for num_bytes in (6, 3, 7, 1, 2)]
    assert [each.has_room for each in askers] == [True, True, False, False, False]
    askers[1].room.leave()
    assert not askers[2].has_room
    askers[0].room.leave()
    assert [each.has_room for each in askers[2:]] == [True, True, True]


@pytest.mark.parametrize("steps", [1, 3])
def test_who_is_alone_may_take_more_than_there_is(steps: int) -> None:
    """Whatever a request takes, it is served; two such go one after the other."""
    limit = FillLimit(10 * _MB)
    askers = [Asker(limit, 30 * _MB, steps) for _ in range(3)]
    for index, asker in enumerate(askers):
        assert [each.has_room for each in askers[index:]] == [
            each is asker for each in askers[index:]
        ]
        asker.room.leave()
        asker.room.leave()  # harmless
    assert Asker(limit, 10 * _MB).has_room


def test_who_gives_up_while_it_waits_lets_the_next_one_try() -> None:
    """It is not decoded, and takes no room."""
    limit = FillLimit(10 * _MB)
    first = Asker(limit, 10 * _MB)
    pool = DecodePool()
    calls = [FakeCall(b"") for _ in range(3)]
    rooms = [FilledRoom(limit) for _ in calls]
    outcomes: list[object] = []
    for call, room in zip(calls, rooms, strict=True):
        pool.run(call, functools.partial(room.take, 10 * _MB), outcomes.append)
    calls[0].client_cancels()
    calls[1].client_cancels()
    assert outcomes == []
    first.room.leave()
    assert set(outcomes) == {calls[0].cancel.error, calls[1].cancel.error, None}
    rooms[2].leave()
    assert Asker(limit, 10 * _MB).has_room


def test_little_is_not_counted() -> None:
    """Thousands of small requests need not wait."""
    limit = FillLimit(1 * _MB)
    assert all(Asker(limit, 16_000).has_room for _ in range(1_000))
