"""Long answers take a bounded share of memory through grpcio, and who reads none goes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine

import pytest

from tfs.frontends.rpc.grpcio import sockets
from tfs.frontends.rpc.grpcio.answer_room import AnswerRoom, Taken
from tfs.testing.fake_clock import FakeClock

MIB = 1 << 20
SMALL = b"a small request"


class Context:
    """What grpcio tells of a call: that it is over."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Rig:
    """A room of 8 MiB, and who was disconnected."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.gone: list[str] = []
        self.room = AnswerRoom(8 * MIB, self.clock.now, self._disconnect)

    def _disconnect(self, peer: str) -> bool:
        self.gone.append(peer)
        return True

    async def ask(self, peer: str, size: int, request: bytes = SMALL) -> Context:
        """Returns the context of a call that was answered, and is not read."""
        context = Context()
        taken = await self.room.enter(peer, request, context)
        self.room.answer(taken, peer, request, size, context)
        return context


def started(rig: Rig, peer: str, request: bytes) -> asyncio.Task[Taken | None]:
    return asyncio.ensure_future(rig.room.enter(peer, request, Context()))


def run(test: Callable[[Rig], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        await test(Rig())

    asyncio.run(main())


def test_small_answers_take_nothing() -> None:
    """They are not even counted."""

    async def test(rig: Rig) -> None:
        for _ in range(1000):
            await rig.ask("ipv4:1", 1000)
        assert rig.room.taken_bytes == 0

    run(test)


def test_a_client_that_reads_nothing_has_its_next_requests_wait() -> None:
    """Large ones, and small ones for a model with long answers; others have room."""

    async def test(rig: Rig) -> None:
        first = await rig.ask("ipv4:1", 3 * MIB)
        large, small = started(rig, "ipv4:1", bytes(MIB)), started(rig, "ipv4:1", SMALL)
        other = started(rig, "ipv4:2", SMALL)
        await asyncio.sleep(0)
        assert other.done()
        assert not large.done()
        assert not small.done()
        assert rig.room.taken_bytes == 6 * MIB
        first.end()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert large.done()
        assert small.done()
        assert rig.room.taken_bytes == 7 * MIB

    run(test)


def test_what_is_longer_than_the_room_has_its_turn() -> None:
    """When little is taken; and nothing is left of it."""

    async def test(rig: Rig) -> None:
        huge = await rig.ask("ipv4:1", MIB, bytes(20 * MIB))
        assert rig.room.taken_bytes == MIB
        huge.end()
        assert rig.room.taken_bytes == 0

    run(test)


def test_who_reads_nothing_goes_sooner_where_others_wait() -> None:
    """After two seconds, else after thirty."""

    async def test(rig: Rig) -> None:
        for number in range(4):
            await rig.ask(f"ipv4:{number}", 2 * MIB, bytes(MIB))
        rig.clock.advance(3.0)
        rig.room.look()
        assert rig.gone == []
        waiting = started(rig, "ipv4:9", bytes(MIB))
        await asyncio.sleep(0)
        rig.room.look()
        assert rig.gone == [f"ipv4:{number}" for number in range(4)]
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not rig.room._waiting

    run(test)


@pytest.mark.parametrize(("family", "host"), [("ipv4", "127.0.0.1"), ("ipv6", "::1")])
def test_a_connection_is_found_by_its_peer(family: str, host: str) -> None:
    """Its client reads the end; other connections, and other files, stay as they are."""
    kind = socket.AF_INET if family == "ipv4" else socket.AF_INET6
    with socket.socket(kind) as listening, socket.socket(kind) as first:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listening.listen()
        first.connect(listening.getsockname())
        with (
            socket.create_connection(listening.getsockname()[:2]) as second,
            listening.accept()[0] as accepted,
            listening.accept()[0],
        ):
            port = first.getsockname()[1]
            name = f"[{host}]" if family == "ipv6" else host
            wire = name.replace("[", "%5B").replace("]", "%5D")
            num_files = len(os.listdir("/proc/self/fd"))
            assert sockets.disconnect(f"{family}:{wire}:{port}")
            assert len(os.listdir("/proc/self/fd")) == num_files
            assert first.recv(1) == b""
            assert accepted.fileno() >= 0
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.recv(1)


@pytest.mark.parametrize("peer", ["unix:", "unix:/run/x.sock", "ipv4:127.0.0.1:1", "?"])
def test_who_has_no_connection_is_not_disconnected(peer: str) -> None:
    """Unix sockets have no names; others may be gone already."""
    assert not sockets.disconnect(peer)
