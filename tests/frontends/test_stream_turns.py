"""Later messages of streams are read through grpcio a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from tfs.frontends.rpc.grpcio.stream_turns import StreamTurns
from tfs.testing.fake_clock import FakeClock

PLACES = 2


class Rig:
    """Streams, each read by a task, whose clients send when a test says so."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.closed: set[str] = set()
        self.turns = StreamTurns(self.clock.now, lambda peer: peer not in self.closed)
        self.asked: list[asyncio.Future[object]] = []

    async def begin(self, peer: str = "peer") -> asyncio.Task[bytes | None]:
        """Returns the reading of a stream's next message."""
        task = asyncio.ensure_future(self.turns.read(peer, self._read))
        for _ in range(3):
            await asyncio.sleep(0)
        return task

    async def _read(self) -> object:
        asked: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.asked.append(asked)
        return await asked


def run(test: Callable[[Rig], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        rig = Rig()
        await test(rig)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.wait([task])
        assert not rig.turns._waiting
        assert not rig.turns._reading

    asyncio.run(main())


def test_a_few_streams_are_read_and_the_next_when_one_has_its_message() -> None:
    """A stream that waits is read when one before it has its message, or its end."""

    async def test(rig: Rig) -> None:
        tasks = [await rig.begin() for _ in range(PLACES + 1)]
        assert len(rig.asked) == PLACES
        rig.asked[0].set_result(b"message")
        assert await tasks[0] == b"message"
        while len(rig.asked) == PLACES:
            await asyncio.sleep(0)
        rig.asked[2].set_result(object())  # as grpcio says that there are no more
        assert await tasks[2] is None

    run(test)


def test_who_sends_nothing_for_a_second_ends_where_others_wait() -> None:
    """As many silent streams end as others wait, the longest silent ones first."""

    async def test(rig: Rig) -> None:
        first = await rig.begin()
        rig.clock.advance(100.0)
        second = await rig.begin()
        rig.turns.look()
        await asyncio.sleep(0)
        assert not first.done()
        third = await rig.begin()
        assert await first is None
        assert rig.asked[0].cancelled()
        fourth = await rig.begin()
        assert not second.done()
        rig.clock.advance(1.0)
        rig.turns.look()
        assert await second is None
        assert not third.done()
        assert not fourth.done()

    run(test)


def test_a_stream_that_is_cancelled_leaves_its_turn_to_the_next() -> None:
    """A stream may be cancelled while it waits, while it is read, or in between."""

    async def test(rig: Rig) -> None:
        first, _, third, fourth, fifth = [await rig.begin() for _ in range(5)]
        third.cancel()
        first.cancel()
        await asyncio.wait([first, third])
        fourth.cancel()
        await asyncio.wait([fourth])
        while len(rig.asked) < PLACES + 1:
            await asyncio.sleep(0)
        rig.asked[-1].set_result(b"message")
        assert await fifth == b"message"

    run(test)


def test_whose_answers_are_unread_has_no_messages_read() -> None:
    """A client's messages wait until it reads answers, and take no turn meanwhile."""

    async def test(rig: Rig) -> None:
        rig.closed.add("deaf")
        held = await rig.begin()
        await rig.begin("deaf")
        rig.clock.advance(100.0)
        rig.turns.look()
        other = await rig.begin()
        assert not held.done()
        assert not other.done()
        assert len(rig.asked) == PLACES
        rig.asked[1].set_result(b"message")
        assert await other == b"message"
        assert len(rig.asked) == PLACES
        rig.closed.clear()
        rig.turns.go_on()
        while len(rig.asked) == PLACES:
            await asyncio.sleep(0)

    run(test)
