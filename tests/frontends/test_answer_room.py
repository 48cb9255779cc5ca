"""Answers take a bounded share of memory through grpcio, and who reads none goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from tests.frontends.fake_connections import FakeConnections
from tfs.core.errors import Unavailable
from tfs.frontends.rpc.grpcio.answer_room import AnswerRoom, Taken
from tfs.testing.fake_clock import FakeClock

MIB = 1 << 20
SMALL = b"a small request"


class Rig:
    """A room of 8 MiB, and its clients' connections."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.connections = FakeConnections()
        self.room = AnswerRoom(8 * MIB, self.clock.now, self.connections)

    async def ask(self, peer: str, size: int, request: bytes = SMALL) -> Taken:
        """Returns what a call takes that was answered, and is not read."""
        taken = await self.room.enter(peer, request)
        self.room.answer(taken, request, size)
        return taken


def started(rig: Rig, peer: str, request: bytes) -> asyncio.Task[Taken]:
    return asyncio.ensure_future(rig.room.enter(peer, request))


def run(test: Callable[[Rig], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        await test(Rig())

    asyncio.run(main())


def test_short_requests_that_claim_much_wait_for_room() -> None:
    """Without anybody knowing their model; and they say nothing of others' requests."""

    async def test(rig: Rig) -> None:
        first = await rig.room.enter("ipv4:1", SMALL, 6 * MIB)
        waiting = asyncio.ensure_future(rig.room.enter("ipv4:2", SMALL, 6 * MIB))
        await asyncio.sleep(0)
        assert not waiting.done()
        rig.room.answer(first, SMALL, 6 * MIB)
        short = await rig.room.enter("ipv4:3", SMALL, 16)
        rig.room.leave(short)
        rig.room.leave(first)
        rig.room.leave(await waiting)
        assert rig.room.taken_bytes == 0

    run(test)


def test_who_has_read_a_long_answer_goes_before_strangers() -> None:
    """Not one time in four, so that strangers have turns too; who left has read nothing."""

    async def test(rig: Rig) -> None:
        for peer in ("ipv4:good", "ipv4:left"):
            taken = await rig.ask(peer, 6 * MIB)
            if peer == "ipv4:left":
                rig.connections.disconnect(peer)
            rig.room.leave(taken)
        taken = await rig.room.enter("ipv4:0", SMALL, 6 * MIB)
        order: list[str] = []

        async def enter(peer: str) -> None:
            taken = await rig.room.enter(peer, SMALL, 6 * MIB)
            order.append(peer)
            rig.room.leave(taken)

        peers = [f"ipv4:{number}" for number in range(1, 4)]
        peers += ["ipv4:left", *["ipv4:good"] * 4]
        calls = [asyncio.ensure_future(enter(peer)) for peer in peers]
        await asyncio.sleep(0)
        rig.room.leave(taken)
        await asyncio.gather(*calls)
        assert order[:5].count("ipv4:good") >= 3
        assert order[:5].count("ipv4:1") == 1
        assert "ipv4:left" not in order[:5]

    run(test)


def test_who_reads_none_of_many_small_answers_has_no_more_read() -> None:
    """Once the room is full, a client with over 256 KB unread gets no request read."""

    async def test(rig: Rig) -> None:
        unread = []
        for number in range(400):
            unread += [await rig.ask("ipv4:1", 1000)]
            await rig.ask(f"ipv4:{number % 10 + 2}", 20_000)
        assert rig.room.taken_bytes > 8 * MIB
        assert not rig.room.is_open_to("ipv4:1")
        assert rig.room.is_open_to("ipv4:99")
        for taken in unread[:350]:
            rig.room.leave(taken)
        assert rig.room.is_open_to("ipv4:1")

    run(test)


def test_a_client_that_reads_nothing_has_its_next_requests_wait() -> None:
    """Requests with long answers wait for their client's reading, and others do not."""

    async def test(rig: Rig) -> None:
        first = await rig.ask("ipv4:1", 3 * MIB)
        large, small = started(rig, "ipv4:1", bytes(MIB)), started(rig, "ipv4:1", SMALL)
        other = started(rig, "ipv4:2", SMALL)
        await asyncio.sleep(0)
        assert other.done()
        assert not large.done()
        assert not small.done()
        assert rig.room.taken_bytes // MIB == 6
        rig.room.leave(first)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert large.done()
        assert small.done()
        assert rig.room.taken_bytes // MIB == 7

    run(test)


def test_who_leaves_when_let_in_lets_in_the_next() -> None:
    """A call that is cancelled in its turn does not leave those behind it waiting."""

    async def test(rig: Rig) -> None:
        for leave_first in (True, False):
            whole = await rig.ask("ipv4:1", 8 * MIB, bytes(8 * MIB))
            gone, next_ = (
                started(rig, peer, bytes(8 * MIB)) for peer in ("ipv4:2", "ipv4:3")
            )
            await asyncio.sleep(0)
            assert not gone.done()
            assert not next_.done()
            for leave in (leave_first, not leave_first):
                if leave:
                    rig.room.leave(whole)
                else:
                    gone.cancel()
            await asyncio.wait([gone])
            for _ in range(3):
                await asyncio.sleep(0)
            assert gone.cancelled()
            assert next_.done()
            rig.room.leave(next_.result())

    run(test)


def test_what_is_longer_than_the_room_has_its_turn() -> None:
    """A request that is longer than the room begins when little is taken."""

    async def test(rig: Rig) -> None:
        huge = await rig.ask("ipv4:1", MIB, bytes(20 * MIB))
        assert rig.room.taken_bytes // MIB == 1
        rig.room.leave(huge)
        assert rig.room.taken_bytes == 0

    run(test)


def test_who_reads_nothing_goes_sooner_where_others_wait() -> None:
    """A client that reads nothing has two seconds if others wait, else thirty."""

    async def test(rig: Rig) -> None:
        for number in range(4):
            await rig.ask(f"ipv4:{number}", 2 * MIB, bytes(MIB))
        rig.clock.advance(3.0)
        rig.room.look()
        assert rig.connections.gone == []
        waiting = started(rig, "ipv4:9", bytes(MIB))
        await asyncio.sleep(0)
        rig.room.look()
        assert rig.connections.gone == [f"ipv4:{number}" for number in range(4)]
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not rig.room._waiting

    run(test)


def test_who_takes_an_answer_slowly_is_not_disconnected() -> None:
    """A client that takes 16 KB a second stays, even if others wait for the room."""

    async def test(rig: Rig) -> None:
        for number in range(4):
            await rig.ask(f"ipv4:{number}", 2 * MIB, bytes(MIB))
        waiting = started(rig, "ipv4:9", bytes(MIB))
        await asyncio.sleep(0)
        for _ in range(10):
            rig.clock.advance(1.0)
            rig.connections.acked_bytes["ipv4:2"] += 20_000
            rig.room.look()
        assert rig.connections.gone == ["ipv4:0", "ipv4:1", "ipv4:3"]
        waiting.cancel()
        await asyncio.wait([waiting])

    run(test)


def test_good_readers_that_wait_for_each_other_are_given_more_room() -> None:
    """After some seconds the room grows step by step, until nobody waits any more."""

    async def test(rig: Rig) -> None:
        unread = [await rig.ask(f"ipv4:{n}", 2 * MIB, bytes(MIB)) for n in range(4)]
        waiting = [started(rig, "ipv4:9", bytes(MIB)) for _ in range(2)]
        for _ in range(8):
            rig.clock.advance(1.0)
            for number in range(4):
                rig.connections.acked_bytes[f"ipv4:{number}"] += 200_000
            rig.room.look()
            await asyncio.sleep(0)
        assert rig.connections.gone == []
        await asyncio.wait_for(asyncio.gather(*waiting), 5.0)
        for taken in unread:
            rig.room.leave(taken)
        for _ in range(8):
            rig.room.look()
        assert rig.room._open_bytes == 8 * MIB

    run(test)


def test_messages_of_streams_take_room_until_they_are_sent() -> None:
    """A message counts as a long one until it is known, and then until it is sent."""

    async def test(rig: Rig) -> None:
        room = rig.room
        deaf = [room.begin_stream("ipv4:1") for _ in range(200)]
        assert not room.is_open_to("ipv4:1")
        assert room.is_open_to("ipv4:2")
        for taken in deaf:
            room.note_unsent(taken, 1000)
        idle = room.begin_stream("ipv4:2")
        room.note_unsent(idle, 1000)
        room.note_unsent(idle, 0)
        assert room.is_open_to("ipv4:1")
        for taken in deaf:
            room.expect(taken)
        for _ in range(5):
            assert not room.is_open_to("ipv4:1")
            rig.clock.advance(1.0)
            room.look()
        assert set(rig.connections.gone) == {"ipv4:1"}
        for taken in (*deaf, idle):
            room.leave(taken)
        assert not room.taken_bytes

    run(test)


def test_long_answers_that_nobody_expected_are_refused_beyond_a_bound() -> None:
    """Sixty requests may be under way when the first answer shows how long they are."""

    async def test(rig: Rig) -> None:
        room = rig.room
        begun = [await room.enter(f"ipv4:{number}", SMALL) for number in range(60)]
        num_refused = 0
        for taken in begun:
            try:
                room.answer(taken, SMALL, 2 * MIB)
            except Unavailable:
                num_refused += 1
        assert 20 < num_refused < 40
        assert room.taken_bytes < 65 * MIB
        for taken in begun:
            room.leave(taken)
        alone = await room.enter("ipv4:1", b"an unusual request")
        room.answer(alone, b"an unusual request", 100 * MIB)

    run(test)


def test_a_client_with_short_answers_waits_for_no_others_long_ones() -> None:
    """A model's long answers to others do not delay a client that got short ones."""

    async def test(rig: Rig) -> None:
        room = rig.room
        deaf = [await rig.ask("ipv4:1", 7 * MIB)]
        first = started(rig, "ipv4:2", SMALL)
        await asyncio.sleep(0)
        assert not first.done()
        room.leave(deaf[0])
        room.answer(await first, SMALL, 100)
        deaf = [await rig.ask("ipv4:1", 7 * MIB)]
        for size in (100, 7 * MIB):
            room.answer(await room.enter("ipv4:2", SMALL), SMALL, size)
        last = started(rig, "ipv4:2", SMALL)
        await asyncio.sleep(0)
        assert not last.done()
        last.cancel()

    run(test)
