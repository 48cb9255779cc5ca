"""TLS ends in the relay: what grpcio gets, who calls, and what hostile clients cost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import pytest

from tests.certificates import CLIENT_NAME, Certificates
from tests.frontends.express.wire import data_frame
from tests.frontends.later_executor import LaterExecutor
from tests.frontends.relay_door import Door, open_files, run
from tests.frontends.tls_client import TlsClient, trusting
from tfs.frontends.rpc.frames import PREFACE
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.read_turns import ReadTurns
from tfs.frontends.rpc.grpcio.relayed_connection import RelayedConnection
from tfs.frontends.rpc.tls.tls_stream import TlsStream
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

_SOME = PREFACE + 6 * data_frame(1, bytes(16_384), 0)
_MUCH_BYTES = 16 << 20


@pytest.fixture(scope="module")
def made() -> Certificates:
    return Certificates()


class Secured:
    """A client's socket, encrypted."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        self.raw = raw
        self.tls = TlsClient(context)
        self._loop = asyncio.get_running_loop()

    async def shake_hands(self, and_send: bytes = b"") -> None:
        """Completes the handshake; sends something with its last bytes."""
        answer = b""
        while True:
            sent = self.tls.take(answer)
            if self.tls.is_done:
                break
            await self._loop.sock_sendall(self.raw, sent)
            answer = await self._loop.sock_recv(self.raw, 1 << 16)
            assert answer, "turned away"
        if and_send:
            sent += self.tls.encrypt(and_send)
        await self._loop.sock_sendall(self.raw, sent)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.raw, self.tls.encrypt(data))

    async def read_to_end(self) -> tuple[bytes, bool]:
        """Returns what comes, and whether it was all, as TLS says."""
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while data := await self._loop.sock_recv(self.raw, 1 << 20):
                self.tls.incoming.write(data)
                with contextlib.suppress(ssl.SSLWantReadError):
                    while part := self.tls.tls.read(1 << 20):
                        received += part
                    return bytes(received), True
        return bytes(received), False

    def close_notify(self) -> bytes:
        """Returns the bytes that say that nothing follows."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.tls.unwrap()
        return self.tls.outgoing.read()


async def _connect(
    door: Door, context: ssl.SSLContext, and_send: bytes = b""
) -> tuple[Secured, socket.socket, str]:
    client = Secured(await door.reach(), context)
    await client.shake_hands(and_send)
    return client, *await door.accept()


async def _read(server: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        data = await asyncio.get_running_loop().sock_recv(server, 1 << 20)
        assert data, "ended"
        received += data
    return received


def test_grpcio_gets_what_a_client_encrypted_and_the_client_what_it_answers(
    tmp_path: Path, made: Certificates
) -> None:
    """What came with the handshake's end is first; what counts are the client's bytes."""

    async def body(door: Door) -> None:
        client, server, name = await _connect(door, trusting(made), _SOME[:1000])
        await client.send(_SOME[1000:])
        assert await _read(server, len(_SOME)) == _SOME
        traffic = door.relay.traffic(name)
        assert traffic is not None
        assert traffic.received_bytes == len(_SOME)
        server.sendall(_SOME)
        server.close()
        assert await client.read_to_end() == (_SOME, True)
        assert door.relay.client(name) is None
        client.raw.close()

    run(body, tmp_path, made.tls())


def test_who_calls_is_known_by_the_name_of_our_own_end(
    tmp_path: Path, made: Certificates
) -> None:
    """The certificate's names belong to that connection; no other one has its name."""

    async def body(door: Door) -> None:
        names = set()
        for _ in range(3):
            context = trusting(made, tmp_path)
            client, server, name = await _connect(door, context)
            peer = door.relay.client(name)
            assert peer is not None
            assert CLIENT_NAME in peer.identity
            assert peer.is_loopback
            assert peer.listener == "grpc"
            client.raw.close()
            assert await asyncio.get_running_loop().sock_recv(server, 1) == b""
            assert door.relay.client(name) is None
            server.close()
            names.add(name)
        assert len(names) == 3
        # The system's own have five digits: they would come again soon.
        assert all(len(name.partition(":")[2]) == 32 for name in names)

    run(body, tmp_path, made.tls(mutual=True))


def test_strangers_do_not_reach_grpcio_and_are_told_why(
    tmp_path: Path, made: Certificates
) -> None:
    """Nothing is connected for who has no certificate, and no descriptor is left."""

    async def body(door: Door) -> None:
        files = open_files()
        client = Secured(await door.reach(), trusting(made))
        await client.shake_hands(_SOME)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await client.read_to_end()
        client.raw.close()
        assert open_files() <= files

    run(body, tmp_path, made.tls(mutual=True))


def test_who_ends_tls_is_gone(tmp_path: Path, made: Certificates) -> None:
    """What it sent before arrives, then the end, and it is answered by TLS's own end."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, name = await _connect(door, trusting(made))
        sent = client.tls.encrypt(_SOME[:5000]) + client.close_notify()
        await loop.sock_sendall(client.raw, sent)
        assert await _read(server, 5000) == _SOME[:5000]
        assert await loop.sock_recv(server, 1) == b""
        assert door.relay.client(name) is None
        assert await loop.sock_recv(client.raw, 1 << 16)
        assert await loop.sock_recv(client.raw, 1 << 16) == b""
        client.raw.close()
        server.close()

    run(body, tmp_path, made.tls())


def test_a_changed_byte_ends_the_connection(tmp_path: Path, made: Certificates) -> None:
    """grpcio gets nothing that the client did not encrypt; the client gets an alert."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, _ = await _connect(door, trusting(made))
        sent = bytearray(client.tls.encrypt(_SOME))
        sent[-1] ^= 1
        await loop.sock_sendall(client.raw, sent)
        received = b""
        while data := await loop.sock_recv(server, 1 << 20):
            received += data
        assert _SOME.startswith(received)
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            await client.read_to_end()
        client.raw.close()
        server.close()

    run(body, tmp_path, made.tls())


def test_who_takes_nothing_is_sent_no_more_than_a_part_and_what_sockets_hold(
    tmp_path: Path, made: Certificates
) -> None:
    """What is encrypted does not wait in memory, and all of it arrives in the end."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, name = await _connect(door, trusting(made))
        sending = asyncio.ensure_future(loop.sock_sendall(server, bytes(_MUCH_BYTES)))
        moved_bytes = -1
        while (traffic := door.relay.traffic(name)) and (
            traffic.acked_bytes != moved_bytes
        ):
            moved_bytes = traffic.acked_bytes
            for _ in range(100):
                await asyncio.sleep(0)
        assert not sending.done()
        assert door.relay._lines[name][0]._answers.num_waiting < 150_000
        sending.add_done_callback(lambda _: server.close())
        received, is_whole = await client.read_to_end()
        assert (len(received), is_whole) == (_MUCH_BYTES, True)
        client.raw.close()

    run(body, tmp_path, made.tls())


def test_a_handshake_is_done_off_the_loop_and_given_up_in_time(
    tmp_path: Path, made: Certificates
) -> None:
    """Until then nothing is connected to grpcio for it; no descriptor is left."""
    clock, executor = FakeClock(), LaterExecutor()

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        num_files = len(open_files())
        slow, silent = await door.reach(), await door.reach()
        await loop.sock_sendall(slow, TlsClient(trusting(made)).take(b""))
        while not executor.jobs:
            await asyncio.sleep(0)
        executor.jobs.pop()()
        assert (await loop.sock_recv(slow, 1))[0] == 0x16
        clock.advance(9.0)
        door.relay.look()
        late = await door.reach()
        while len(open_files()) < num_files + 6:
            await asyncio.sleep(0)
        clock.advance(2.0)
        door.relay.look()
        for each in (slow, silent):
            while await loop.sock_recv(each, 1 << 16):
                pass
            each.close()
        late.setblocking(False)
        with pytest.raises(BlockingIOError):
            late.recv(1)
        door.relay.stop_listening()
        assert await loop.sock_recv(late, 1) == b""
        late.close()

    run(body, tmp_path, made.tls(), clock=clock, executor=executor)


def test_a_client_that_leaves_within_its_handshake_is_no_harm(
    tmp_path: Path, made: Certificates
) -> None:
    """What the executor finds out of it is dropped, even when the loop is closed."""
    executor = LaterExecutor()

    async def body(door: Door) -> None:
        client = await door.reach()
        await asyncio.get_running_loop().sock_sendall(
            client, TlsClient(trusting(made)).take(b"")
        )
        while not executor.jobs:
            await asyncio.sleep(0)
        client.close()

    run(body, tmp_path, made.tls(), executor=executor)
    executor.jobs.pop()()


class _Talkative(TlsStream):
    """Has something to say to all that it is sent, as after a change of keys."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        return b"", False

    def take_output(self) -> bytes:
        return bytes(30_000)

    def end(self) -> bytes:
        return b""


def test_who_has_tls_talk_and_reads_nothing_is_disconnected() -> None:
    """What TLS itself answers is bounded like anything else that waits."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        floods: list[str] = []
        (outer, client), (server, inner) = socket.socketpair(), socket.socketpair()
        for each in (client, inner, outer):
            each.setblocking(False)
        gate = CallGate(loop.time)
        RelayedConnection(
            loop,
            client,
            inner,
            gate,
            ReadTurns(loop),
            64,
            list,
            floods.append,
            _Talkative(),
        )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1000):
                await loop.sock_sendall(outer, b"x")
                await asyncio.sleep(0)
        assert floods == ["it changes its keys and reads nothing"]
        assert server.recv(1) == b""
        outer.close()
        server.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
