"""Clients have names under grpcio, and what they may send is passed on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import socket
import stat
import tempfile
import weakref
from pathlib import Path

import pytest

from tests.frontends.express.wire import (
    LITERALS,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
)
from tests.frontends.relay_door import Door, make_relay, open_files, run
from tests.frontends.scarce_files import files_left
from tfs.core.call import ListenerOptions
from tfs.core.errors import Unavailable
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.frames import PREFACE, ErrorCode, FrameType
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.read_turns import ReadTurns
from tfs.frontends.rpc.grpcio.relayed_connection import RelayedConnection
from tfs.frontends.rpc.unix_socket import UNIX
from tfs.testing.patience import PATIENCE_S

_MUCH_BYTES = 16 << 20
_SOME = bytes(24) + 6 * data_frame(1, bytes(16_384), 0)  # a preface, and frames


def test_what_a_client_sends_and_takes_is_known_by_its_name(tmp_path: Path) -> None:
    """Each client has a name, and counts of bytes sent, taken and not read yet."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        relay = door.relay
        first, server, name = await door.connect()
        second, other, other_name = await door.connect()
        assert name != other_name
        await loop.sock_sendall(first, b"question")
        assert await loop.sock_recv(server, 100) == b"question"
        await loop.sock_sendall(server, b"answer")
        assert await loop.sock_recv(first, 100) == b"answer"
        traffic = relay.traffic(name)
        assert traffic is not None
        assert (traffic.received_bytes, traffic.acked_bytes) == (8, 6)
        assert traffic.unread_bytes == 0
        idle = relay.traffic(other_name)
        assert idle is not None
        assert (idle.received_bytes, idle.acked_bytes) == (0, 0)
        await loop.sock_sendall(first, b"more")
        await loop.sock_sendall(second, b"x")
        assert await loop.sock_recv(other, 100) == b"x"
        traffic = relay.traffic(name)
        assert traffic is not None
        assert traffic.received_bytes == 12
        assert traffic.unread_bytes > 0
        for each in (first, server, second, other):
            each.close()

    run(body, tmp_path)


def test_who_takes_nothing_is_sent_no_more_than_a_part_and_what_sockets_hold(
    tmp_path: Path,
) -> None:
    """The server's sending waits for the client, and then everything arrives."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, name = await door.connect()
        sending = asyncio.ensure_future(loop.sock_sendall(server, bytes(_MUCH_BYTES)))
        moved_bytes = -1
        while (traffic := door.relay.traffic(name)) and (
            traffic.acked_bytes != moved_bytes
        ):
            moved_bytes = traffic.acked_bytes
            for _ in range(100):
                await asyncio.sleep(0)
        assert not sending.done()
        num_bytes = 0
        while num_bytes < _MUCH_BYTES:
            num_bytes += len(await loop.sock_recv(client, 1 << 20))
        await sending
        traffic = door.relay.traffic(name)
        assert traffic is not None
        assert traffic.acked_bytes == _MUCH_BYTES
        client.close()
        server.close()

    run(body, tmp_path)


def test_a_client_is_disconnected_by_its_name(tmp_path: Path) -> None:
    """Both sides read the end, no descriptor is left, and other clients stay."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        relay = door.relay
        first, server, name = await door.connect()
        files = open_files()
        second, other, other_name = await door.connect()
        assert relay.disconnect(other_name)
        assert await loop.sock_recv(second, 1) == b""
        assert await loop.sock_recv(other, 1) == b""
        second.close()
        other.close()
        assert open_files() <= files
        assert relay.num_disconnected == 1
        assert not relay.disconnect(other_name)
        assert relay.traffic(other_name) is None
        assert relay.traffic(name) is not None
        first.close()
        server.close()

    run(body, tmp_path)


@pytest.mark.parametrize("num_left", [0, 1])
def test_who_comes_while_no_descriptor_is_free_waits_or_is_told_of_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_left: int
) -> None:
    """It is counted, and nobody is accepted for a second; then the next is served.

    With one descriptor free, which the first client takes, that client is gone.
    """

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        clients = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for client in clients:
            client.connect(door.path)
            client.setblocking(False)
        with files_left(num_left):
            for _ in range(100):
                await asyncio.sleep(0)
        assert door.relay.num_failed_accepts == 1
        assert caplog.text.count("event=accept_failed listener=grpc") == 1
        if num_left:
            assert await loop.sock_recv(clients[0], 1) == b""
        for client in clients[num_left:]:
            await loop.sock_sendall(client, b"question")
            server, _ = await door.accept()
            assert await loop.sock_recv(server, 100) == b"question"
            server.close()
        for client in clients:
            client.close()

    run(body, tmp_path)


@pytest.mark.parametrize("leaver", ["client", "server"])
def test_when_one_side_leaves_the_other_reads_all_and_then_the_end(
    leaver: str, tmp_path: Path
) -> None:
    """Nothing that one side sent before it closed is lost."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, _ = await door.connect()
        leaving, staying = (client, server) if leaver == "client" else (server, client)
        await loop.sock_sendall(leaving, _SOME)
        leaving.close()
        received = b""
        while data := await loop.sock_recv(staying, 1 << 20):
            received += data
        assert received == _SOME
        staying.close()

    run(body, tmp_path)


def test_a_connection_that_ended_is_gone_at_once() -> None:
    """It leaves nothing for the garbage collector, whichever side ended it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for leaver in (0, 1):
            ends: list[int] = []
            (outer, client), (server, inner) = socket.socketpair(), socket.socketpair()
            for each in (client, inner):
                each.setblocking(False)
            ended = functools.partial(ends.append, 1)
            gate = CallGate(loop.time)
            line = RelayedConnection(
                loop, client, inner, gate, ReadTurns(loop), 64, ended, print
            )
            left = weakref.ref(line)
            del line
            (outer, server)[leaver].close()
            while not ends:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            outer.close()
            server.close()
            assert left() is None

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    finally:
        gc.enable()


def test_who_has_given_up_all_calls_is_not_kept_waiting(tmp_path: Path) -> None:
    """The next one goes on at once, and shows when grpcio has come upon the others."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, name = await door.connect()
        sent = PREFACE
        for stream_id in range(1, 129, 2):
            sent += headers_frame(stream_id, LITERALS)
        client.sendall(sent)
        received = b""
        size = len(headers_frame(1, LITERALS))
        while len(received) < len(PREFACE) + 23 * size:
            received += await loop.sock_recv(server, 1 << 20)
        num_passed = len(received) - len(PREFACE)
        resets = b"".join(
            frames.rst_stream(stream_id, ErrorCode.CANCEL)
            for stream_id in range(1, 129, 2)
        )
        call = headers_frame(129, LITERALS) + data_frame(129, b"later")
        client.sendall(resets + call)
        received = b""
        while not received.endswith(call):
            received += await loop.sock_recv(server, 1 << 20)
        assert door.gate.num_calls == num_passed // size + 1
        for _ in range(num_passed // size):
            door.relay.note_taken(name, is_read=True)
        assert door.gate.num_calls == 1
        client.close()
        server.close()

    run(body, tmp_path)


def test_what_the_server_wrote_before_the_end_arrives(tmp_path: Path) -> None:
    """An answer is not lost if the server ends in the same instant."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, _ = await door.connect()
        server.sendall(_SOME)
        door.relay.close()
        received = b""
        while data := await loop.sock_recv(client, 1 << 20):
            received += data
        assert received == _SOME
        client.close()
        server.close()

    run(body, tmp_path)


def test_the_last_answer_arrives_though_the_server_takes_nothing_more(
    tmp_path: Path,
) -> None:
    """A client that still sends when the server ends reads all, and then the end."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, name = await door.connect()
        client.sendall(b"one more")
        server.sendall(_SOME)
        server.close()
        received = b""
        while data := await loop.sock_recv(client, 1 << 20):
            received += data
        assert received == _SOME
        assert door.relay.traffic(name) is None
        client.close()

    run(body, tmp_path)


def test_who_has_no_call_is_let_go_and_who_has_one_stays(tmp_path: Path) -> None:
    """The first reads all that the server wrote, and then the end."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        idle, server, name = await door.connect()
        busy, other, other_name = await door.connect()
        call = PREFACE + headers_frame(1, LITERALS)
        await loop.sock_sendall(busy, call)
        assert await loop.sock_recv(other, 1 << 20) == call
        server.sendall(_SOME)
        door.relay.let_idle_go()
        received = b""
        while data := await loop.sock_recv(idle, 1 << 20):
            received += data
        assert received == _SOME
        assert await loop.sock_recv(server, 1) == b""
        assert door.relay.traffic(name) is None
        assert door.relay.traffic(other_name) is not None
        answered = headers_frame(1, b"", frames.END_HEADERS | frames.END_STREAM)
        await loop.sock_sendall(other, answered)
        assert await loop.sock_recv(busy, 1 << 20) == answered
        door.relay.let_idle_go()
        assert await loop.sock_recv(busy, 1) == b""
        for each in (idle, server, busy, other):
            each.close()

    run(body, tmp_path)


def test_who_still_sends_while_it_reads_the_last_answer_is_not_reset(
    tmp_path: Path,
) -> None:
    """The relay is empty when such a client has read all, and has closed."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        relay = door.relay
        files = open_files()
        client, server, name = await door.connect()
        sending = asyncio.ensure_future(loop.sock_sendall(server, bytes(_MUCH_BYTES)))
        received = len(await loop.sock_recv(client, 1 << 20))
        while not sending.done():
            client.sendall(b"window")
            received += len(await loop.sock_recv(client, 1 << 20))
        server.close()
        drained = asyncio.ensure_future(relay.wait_until_empty(PATIENCE_S))
        client.sendall(b"window")
        while relay.traffic(name) is not None:
            client.sendall(b"window")
            received += len(await loop.sock_recv(client, 1 << 10))
        client.sendall(b"window")
        assert not drained.done()
        while data := await loop.sock_recv(client, 1 << 20):
            received += len(data)
        assert received == _MUCH_BYTES
        assert not drained.done()
        client.close()
        await drained
        assert open_files() <= files

    run(body, tmp_path)


def test_a_tcp_client_is_known_by_its_address_and_ends_by_its_flood(
    tmp_path: Path,
) -> None:
    """What it sent of headers without end does not reach the server."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        relay = door.relay
        opened = relay.open(ListenerOptions("grpc", "127.0.0.1:0"))
        behind = socket.socket(socket.AF_UNIX)
        behind.bind(opened.inner_address.removeprefix(UNIX))
        behind.listen()
        behind.setblocking(False)
        relay.start()
        host, _, port = opened.listener.address.rpartition(":")
        client = socket.create_connection((host, int(port)))
        client.setblocking(False)
        server, raw = await loop.sock_accept(behind)
        name = f"unix-abstract:{raw[1:].decode()}"
        known = relay.client(name)
        assert known is not None
        mine = client.getsockname()
        assert (known.address, known.is_loopback) == (f"{mine[0]}:{mine[1]}", True)
        assert relay.address(name) == known.address
        more = frames.frame(FrameType.CONTINUATION, 0, 1, bytes(16_384))
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(
                client, PREFACE + headers_frame(1, b"\x82", 0) + more * 100
            )
        received = b""
        while data := await loop.sock_recv(server, 1 << 20):
            received += data
        assert PREFACE.startswith(received)
        assert relay.client(name) is None
        for each in (client, server, behind):
            each.close()

    run(body, tmp_path)


_MALFORMED = literal_block(grpc_headers(path=""))


def test_a_refused_call_is_reset_between_frames_of_the_server(tmp_path: Path) -> None:
    """The client understands both; nothing comes before the server's first frame."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, _ = await door.connect()
        await loop.sock_sendall(client, PREFACE + headers_frame(1, _MALFORMED))
        assert await loop.sock_recv(server, 1 << 16) == PREFACE
        resets = [
            frames.rst_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
            for stream_id in (1, 3, 5)
        ]
        first = frames.settings({})
        await loop.sock_sendall(server, first)
        assert await loop.sock_recv(client, 100) == first + resets[0]
        await loop.sock_sendall(client, headers_frame(3, _MALFORMED))
        assert await loop.sock_recv(client, 100) == resets[1]
        answer = data_frame(7, b"answer")
        await loop.sock_sendall(server, answer[:5])
        assert await loop.sock_recv(client, 100) == answer[:5]
        window = frames.window_update(0, 1)
        await loop.sock_sendall(client, headers_frame(5, _MALFORMED) + window)
        assert await loop.sock_recv(server, 100) == window
        await loop.sock_sendall(server, answer[5:] + answer[:12])
        expected = answer[5:] + resets[2] + answer[:12]
        assert await loop.sock_recv(client, 100) == expected
        client.close()
        server.close()

    run(body, tmp_path)


@pytest.mark.parametrize("is_late", [False, True], ids=["request", "behind one"])
def test_who_is_gone_when_a_call_is_refused_leaves_nothing(
    tmp_path: Path, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its later calls, which came with that one, take nobody else's place for good."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, name = await door.connect()
        await loop.sock_sendall(server, frames.settings({}))
        await loop.sock_recv(client, 100)
        sent = PREFACE + headers_frame(1, LITERALS if is_late else _MALFORMED)
        if is_late:
            sent += headers_frame(1, _MALFORMED)
        for stream_id in range(3, 23, 2):
            sent += headers_frame(stream_id, LITERALS)
        client.send(sent)
        client.close()
        with contextlib.suppress(ConnectionError):
            while await loop.sock_recv(server, 1 << 16):
                pass
        for _ in range(10 + is_late):
            door.relay.note_taken(name, is_read=True)
        gate = door.gate
        assert (gate.num_calls, gate.num_fresh, gate.num_queuing) == (0, 0, 0)
        server.close()

    run(body, tmp_path)
    assert not caplog.records


def test_who_sends_headers_that_cannot_be_read_is_told_why(tmp_path: Path) -> None:
    """By GOAWAY, which names the last stream that the client began."""

    async def body(door: Door) -> None:
        loop = asyncio.get_running_loop()
        client, server, name = await door.connect()
        first, call = frames.settings({}), headers_frame(1, LITERALS)
        await loop.sock_sendall(server, first)
        await loop.sock_sendall(client, PREFACE + call)
        received = b""
        while len(received) < len(PREFACE + call):
            received += await loop.sock_recv(server, 1 << 16)
        await loop.sock_sendall(client, headers_frame(3, b"\x80"))
        received = b""
        while data := await loop.sock_recv(client, 1 << 16):
            received += data
        code = ErrorCode.COMPRESSION_ERROR
        assert received == first + frames.goaway(3, code, "HPACK: index 0")
        assert await loop.sock_recv(server, 1 << 16) == b""
        assert door.relay.client(name) is None
        client.close()
        server.close()

    run(body, tmp_path)


def test_a_path_is_removed_while_it_is_still_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes the path over at that moment keeps it."""
    relay = make_relay()
    path = str(tmp_path / "tfs.sock")
    relay.open(ListenerOptions("grpc", UNIX + path))
    removed = []
    unlink = os.unlink

    def look_and_unlink(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)  # refused if nobody listens there
        removed.append(path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", look_and_unlink)
        relay.stop_listening()
    assert removed == [path]
    relay.close()


def test_a_long_path_for_temporary_files_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpcio's socket lies beside the client's, or the error says what to set."""
    long = tmp_path / ("t" * 91)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        relay = make_relay()
        door = relay.open(ListenerOptions("grpc", f"{UNIX}{short}/tfs.sock"))
        assert door.inner_address.startswith(f"{UNIX}{short}/")
        relay.close()
        deep = f"{short}/{'d' * (92 - len(short) - 1)}"
        os.mkdir(deep)
        relay = make_relay()
        with pytest.raises(Unavailable, match=r"set TMPDIR .* at most 91 bytes"):
            relay.open(ListenerOptions("grpc", f"{UNIX}{deep}/s"))
        relay.close()


def test_only_the_servers_own_user_reaches_the_socket_behind(tmp_path: Path) -> None:
    """The permissions of the path cannot be avoided; nothing is left at the end."""

    async def body(door: Door) -> None:
        folder = os.path.dirname(door.inner_path)
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        door.relay.close()
        assert not os.path.exists(folder)
        assert not os.path.exists(door.path)

    run(body, tmp_path)


def test_a_path_that_cannot_be_bound_says_what_to_do(tmp_path: Path) -> None:
    """The error names the same remedy as through express."""
    relay = make_relay()
    with pytest.raises(Unavailable, match="make its directory first"):
        relay.open(ListenerOptions("grpc", f"{UNIX}{tmp_path}/missing/tfs.sock"))
    relay.close()
