"""tfs.frontends.rpc.grpcio keeps what every transport promises."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import socket
import struct
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import grpc
import grpc.aio
import hpack
import pytest

from tests.core.conformance.transport import (
    STREAM_CHECKS,
    TRANSPORT_CHECKS,
    TransportCheck,
    over_tls,
)
from tests.frontends.express.wire import (
    HELLO,
    data_frame,
    grpc_headers,
    headers_frame,
)
from tests.frontends.peers import connect
from tests.runtime.process_host import until
from tfs.core.call import Call, ListenerOptions, MethodKind, RpcMethod
from tfs.core.errors import NotFound, Unavailable
from tfs.core.serving_loop import ServingLoop
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.frames import (
    PREFACE,
    ErrorCode,
    FrameType,
    Setting,
)
from tfs.frontends.rpc.grpcio.answer_room import AnswerRoom
from tfs.frontends.rpc.grpcio.options import GrpcioOptions
from tfs.frontends.rpc.grpcio.transport import GrpcioTransport
from tfs.frontends.rpc.heads.hpack_decoder import encode_literal
from tfs.testing.patience import PATIENCE_S

OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def _listener(door: str, folder: Path) -> ListenerOptions:
    address = "127.0.0.1:0" if door == "tcp" else f"unix:{folder}/tfs.sock"
    return ListenerOptions("grpc", address)


def _is_cut_off(client: socket.socket, pieces: Iterable[bytes]) -> bool:
    """Whether the server closes the connection before the client has sent all."""
    try:
        client.sendall(HELLO)
        for piece in pieces:
            client.sendall(piece)
    except OSError:
        return True
    return False


def make(loop: ServingLoop) -> GrpcioTransport:
    return GrpcioTransport(loop)


@pytest.mark.parametrize(
    "check", TRANSPORT_CHECKS + STREAM_CHECKS, ids=lambda check: check.__name__
)
def test_grpcio_is_a_transport(check: TransportCheck) -> None:
    """Each promise of the seam, with a real gRPC client over loopback."""
    check(make)


@pytest.mark.parametrize(
    "check", TRANSPORT_CHECKS + STREAM_CHECKS, ids=lambda check: check.__name__
)
def test_grpcio_is_a_transport_over_tls(check: TransportCheck) -> None:
    """Encryption changes no promise of a transport."""
    check(over_tls(make))


def _differ(one: Sequence[object], other: Sequence[object]) -> bool:
    return one != other


def test_a_server_of_grpcio_that_ends_is_replaced() -> None:
    """Its listener goes on; what ends it here is a path, sent to it past the relay."""
    loop = ServingLoop()
    loop.start()
    transport = make(loop)
    path = "/test.Service/Echo"
    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        (door,) = transport._relay._doors
        block = b"".join(
            encode_literal(name.encode(), value.encode("latin-1"))
            for name, value in grpc_headers(path="/test.Service/\xff")
        )
        for _ in range(2):
            before = list(transport._servers)
            with connect(door.inner_address, None) as past:
                past.sendall(HELLO + headers_frame(1, block) + data_frame(1, bytes(5)))
                until(functools.partial(_differ, transport._servers, before), "another")
            with grpc.insecure_channel(address, OPTIONS) as channel:
                echo = channel.unary_unary(path, bytes, bytes)
                assert echo(b"", timeout=PATIENCE_S, wait_for_ready=True) == b"here"
    finally:
        transport.close()
        loop.close()


def test_freed_memory_is_returned_at_every_look_while_requests_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long messages leave holes of 100 MB in a second, if others come one after another."""
    looks = []
    room_look = AnswerRoom.look

    def look(room: AnswerRoom) -> None:
        looks.append("room")  # once a second
        room_look(room)

    monkeypatch.setattr(AnswerRoom, "look", look)
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    calls: list[Call] = []
    transport = GrpcioTransport(loop, on_look=lambda: looks.append("heap"))
    large = bytes(12 << 20)
    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, calls.append)},
        )
        with grpc.insecure_channel(address, OPTIONS) as channel:
            echo = channel.unary_unary(path, bytes, bytes)
            answers = [echo.future(large, timeout=PATIENCE_S) for _ in range(2)]
            until(lambda: transport.answer_room.num_waiting == 1, "a call to wait")
            begin = len(looks)
            until(lambda: looks[begin:].count("room") >= 4, "looks")
            seen = looks[begin:]
            assert seen.count("heap") > 2 * seen.count("room")
            for _ in answers:
                until(lambda: bool(calls), "a call")
                calls.pop().reply(b"here")
            assert [each.result(PATIENCE_S) for each in answers] == [b"here"] * 2
    finally:
        transport.close()
        loop.close()


@pytest.mark.parametrize("door", ["tcp", "unix"])
def test_who_sends_nothing_more_keeps_no_others_from_being_read(
    door: str, tmp_path: Path
) -> None:
    """Twenty begin requests of 10 MB and stop; who calls is answered, at length, too."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    transport = GrpcioTransport(loop)
    block = b"".join(
        encode_literal(name.encode(), value.encode())
        for name, value in grpc_headers(path=path)
    )
    begun = HELLO + headers_frame(1, block) + data_frame(1, bytes([0, 0, 160, 0, 0]), 0)
    large = bytes(2 << 20)
    try:
        (address,) = transport.start(
            [_listener(door, tmp_path)],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                client = connect(address, None)
                stack.enter_context(client)
                client.sendall(begun + data_frame(1, bytes(16_000), 0) * 3)
            channel = stack.enter_context(grpc.insecure_channel(address, OPTIONS))
            echo = channel.unary_unary(path, bytes, bytes)
            assert echo(large, timeout=PATIENCE_S) == b"here"
            assert echo(b"", timeout=PATIENCE_S) == b"here"
    finally:
        transport.close()
        loop.close()


@pytest.mark.parametrize("door", ["tcp", "unix"])
@pytest.mark.parametrize(
    "frame",
    [
        frames.settings({Setting.MAX_FRAME_SIZE: 20_000}),
        frames.frame(FrameType.PRIORITY, 0, 1, bytes(5)),
        frames.frame(0xBB, 0, 0, bytes(1000)),
    ],
    ids=["settings", "priority", "unknown"],
)
def test_who_sends_frames_without_end_is_disconnected(
    frame: bytes, door: str, tmp_path: Path
) -> None:
    """They cost time and ask for nothing; others are answered."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    transport = make(loop)
    piece = frame * (65_536 // len(frame))
    try:
        (address,) = transport.start(
            [_listener(door, tmp_path)],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        with connect(address, None) as client:
            assert _is_cut_off(client, itertools.repeat(piece, 10_000))
        with grpc.insecure_channel(address, OPTIONS) as channel:
            echo = channel.unary_unary(path, bytes, bytes)
            assert echo(b"", timeout=PATIENCE_S) == b"here"
    finally:
        transport.close()
        loop.close()


def test_who_resets_calls_without_end_is_disconnected() -> None:
    """Each costs the server a call, and the client nothing."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    transport = make(loop)
    block = b"".join(
        encode_literal(name.encode(), value.encode())
        for name, value in grpc_headers(path=path)
    )
    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        pieces = (
            headers_frame(stream_id, block)
            + frames.rst_stream(stream_id, ErrorCode.CANCEL)
            for stream_id in range(1, 1 << 20, 2)
        )
        with connect(address, None) as client:
            assert _is_cut_off(client, pieces)
        with grpc.insecure_channel(address, OPTIONS) as channel:
            echo = channel.unary_unary(path, bytes, bytes)
            assert echo(b"", timeout=PATIENCE_S) == b"here"
    finally:
        transport.close()
        loop.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::]"])
def test_a_client_that_sends_much_stays_connected(host: str) -> None:
    """What it sends is known for messages by the name that grpcio gives it."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    transport = make(loop)
    peers: set[str] = set()

    def handle(call: Call) -> None:
        peers.add(call.peer.address)
        call.reply(b"here")

    try:
        try:
            (address,) = transport.start(
                [ListenerOptions("grpc", f"{host}:0")], {path: RpcMethod(path, handle)}
            )
        except Unavailable:
            pytest.skip(f"this machine has no {host}")
        address = address.replace("[::]", "127.0.0.1")
        with grpc.insecure_channel(address, OPTIONS) as channel:
            echo = channel.unary_unary(path, bytes, bytes)
            for size in (3 << 20, 60_000):
                for _ in range(30):
                    assert echo(bytes(size), timeout=PATIENCE_S) == b"here"
            assert echo(b"", timeout=PATIENCE_S) == b"here"
        assert len(peers) == 1
    finally:
        transport.close()
        loop.close()


def test_who_reads_nothing_does_not_hold_up_a_drain() -> None:
    """grpcio alone waits twenty seconds for a sign of life of a client without calls."""
    loop = ServingLoop()
    loop.start()
    transport = make(loop)
    try:
        (address,) = transport.start([ListenerOptions("grpc", "127.0.0.1:0")], {})
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as client:
            client.sendall(HELLO)
            assert client.recv(1)
            begun_s = loop.clock.now()
            assert transport.drain(begun_s + PATIENCE_S)
            assert loop.clock.now() - begun_s < 15.0
    finally:
        transport.close()
        loop.close()


def test_all_calls_of_a_client_with_hundreds_at_once_are_answered() -> None:
    """grpcio refuses some where as many are under way as it allows, or a few less."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    transport = make(loop)

    async def call(address: str) -> None:
        async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
            echo = channel.unary_unary(path, bytes, bytes)

            async def some() -> None:
                for _ in range(4):
                    assert await echo(b"", timeout=PATIENCE_S) == b"here"

            await asyncio.gather(*(some() for _ in range(400)))

    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        asyncio.run(call(address))
    finally:
        transport.close()
        loop.close()


def test_who_gives_up_hundreds_of_calls_that_nobody_answers_stays() -> None:
    """Deadlines pass where a model is slow, again and again; that is no flood."""
    loop = ServingLoop()
    loop.start()
    slow, echo = "/test.Service/Slow", "/test.Service/Echo"
    transport = make(loop)
    peers = set()

    def answer(call: Call) -> None:
        peers.add(call.peer.address)
        call.reply(b"here")

    async def call(address: str) -> None:
        async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
            ask, wait = (
                channel.unary_unary(each, bytes, bytes) for each in (echo, slow)
            )
            assert await ask(b"", timeout=PATIENCE_S) == b"here"
            for _ in range(12):
                waiting = [wait(b"", timeout=0.05) for _ in range(60)]
                codes = await asyncio.gather(*(each.code() for each in waiting))
                assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
            assert await ask(b"", timeout=PATIENCE_S) == b"here"

    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {
                slow: RpcMethod(slow, lambda call: None),
                echo: RpcMethod(echo, answer),
            },
        )
        asyncio.run(call(address))
        assert len(peers) == 1
    finally:
        transport.close()
        loop.close()


def test_calls_that_are_given_up_while_they_wait_leave_later_ones_alone() -> None:
    """grpcio reads their headers, by which later ones are compressed, and ignores them."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    waiting: list[Call] = []
    arrived = threading.Semaphore(0)
    transport = make(loop)
    transport._relay._most_calls = 8  # grpcio counts a call that has ended for a moment

    def take(call: Call) -> None:
        waiting.append(call)
        arrived.release()

    encoder = hpack.Encoder()

    def request(stream_id: int, name: str) -> bytes:
        block = encoder.encode(grpc_headers(("name", name), path=path))
        return headers_frame(stream_id, block) + data_frame(stream_id, bytes(5))

    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")], {path: RpcMethod(path, take)}
        )
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(HELLO)
            for stream_id in range(1, 17, 2):
                client.sendall(request(stream_id, "first"))
                assert arrived.acquire(timeout=PATIENCE_S)
            for stream_id in range(17, 117, 2):
                reset = frames.rst_stream(stream_id, ErrorCode.CANCEL)
                client.sendall(request(stream_id, "given up") + reset)
            client.sendall(request(117, "given up") + frames.ping(b"have you"))
            answer = frames.ping(b"have you", ack=True)
            received = b""
            while answer not in received:
                received += client.recv(1 << 16)
            for call in waiting:
                call.reply(b"")
            assert arrived.acquire(timeout=PATIENCE_S)
            waiting[-1].reply(b"")
        names = [dict(call.metadata)["name"] for call in waiting]
        assert names == ["first"] * 8 + ["given up"]
    finally:
        transport.close()
        loop.close()


def test_long_requests_of_many_good_clients_are_all_answered() -> None:
    """A call that waits for others' calls takes nothing that these need to end."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    transport = make(loop)

    async def call(address: str) -> None:
        async with contextlib.AsyncExitStack() as stack:

            async def some(echo: Callable[..., Awaitable[bytes]]) -> None:
                for _ in range(3):
                    assert await echo(bytes(200_000), timeout=PATIENCE_S) == b"here"

            callers = []
            for _ in range(16):
                channel = grpc.aio.insecure_channel(address, OPTIONS)
                await stack.enter_async_context(channel)
                echo = channel.unary_unary(path, bytes, bytes)
                callers += [some(echo) for _ in range(64)]
            await asyncio.gather(*callers)

    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        asyncio.run(call(address))
    finally:
        transport.close()
        loop.close()


@pytest.mark.parametrize("kind", list(MethodKind))
def test_nothing_is_left_of_a_call_that_failed(kind: MethodKind) -> None:
    """A failed call is freed without the garbage collector: its message may be long."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Fail"
    calls: list[weakref.ref[Call]] = []

    def handle(call: Call) -> None:
        calls.append(weakref.ref(call))
        try:
            raise NotFound("nothing")
        except NotFound as error:
            call.fail(error)

    transport = make(loop)
    gc.disable()
    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, handle, kind)},
        )
        with grpc.insecure_channel(address, OPTIONS) as channel:
            ask = channel.stream_stream(path, bytes, bytes)
            with pytest.raises(grpc.RpcError) as caught:
                list(ask(iter([b"a message"]), timeout=PATIENCE_S))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        for _ in range(500):
            if calls[0]() is None:
                break
            threading.Event().wait(0.01)
        assert calls[0]() is None
    finally:
        gc.enable()
        transport.close()
        loop.close()


def test_clients_are_told_how_little_they_may_send_unasked() -> None:
    """Sixty-four calls a connection, and 8 KB of each: no crowd of them fills memory."""
    loop = ServingLoop()
    loop.start()
    transport = make(loop)
    told: dict[int, int] = {}
    try:
        (address,) = transport.start([ListenerOptions("grpc", "127.0.0.1:0")], {})
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as client:
            client.sendall(HELLO)
            received = b""
            while not told:
                received += client.recv(65_536)
                word, _, _ = frames.unpack_head(received, 0)
                payload = received[frames.HEAD_SIZE : frames.HEAD_SIZE + (word >> 8)]
                assert word & 0xFF == FrameType.SETTINGS
                if len(payload) == word >> 8:
                    told.update(struct.iter_unpack(">HI", payload))
        assert told[Setting.MAX_CONCURRENT_STREAMS] == 64
        assert told[Setting.INITIAL_WINDOW_SIZE] == 8192
    finally:
        transport.close()
        loop.close()


def test_a_unary_call_without_a_message_is_unimplemented() -> None:
    """A unary call without a message is UNIMPLEMENTED, as through express."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    transport = make(loop)
    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        with grpc.insecure_channel(address, OPTIONS) as channel:
            say_nothing = channel.stream_unary(path, bytes, bytes)
            with pytest.raises(grpc.RpcError) as caught:
                say_nothing(iter(()), timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        transport.close()
        loop.close()


@pytest.mark.parametrize("door", ["tcp", "unix"])
def test_who_reads_nothing_keeps_no_others_from_long_answers(
    door: str, tmp_path: Path
) -> None:
    """Its connection is closed once others wait; of its requests a few were begun."""
    loop = ServingLoop()
    loop.start()
    num_begun: list[None] = []
    path = "/test.Service/Long"

    def handle(call: Call) -> None:
        num_begun.append(None)
        call.reply(bytes(2 << 20))

    transport = GrpcioTransport(loop, GrpcioOptions(open_answer_bytes=4 << 20))
    hello = PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
    block = b"".join(
        encode_literal(name.encode(), value.encode())
        for name, value in grpc_headers(path=path)
    )
    options = [*OPTIONS, ("grpc.max_receive_message_length", -1)]
    try:
        (address,) = transport.start(
            [_listener(door, tmp_path)], {path: RpcMethod(path, handle)}
        )
        with grpc.insecure_channel(address, options) as channel:
            ask = channel.unary_unary(path, None, None)
            assert len(ask(b"", timeout=PATIENCE_S)) == 2 << 20
            with connect(address, None) as deaf:
                deaf.sendall(hello)
                for stream_id in range(1, 101, 2):
                    deaf.sendall(
                        headers_frame(stream_id, block)
                        + data_frame(stream_id, b"\0" * 5)
                    )
                with contextlib.suppress(ConnectionResetError):
                    while deaf.recv(65_536):
                        pass  # grpcio's own frames, and then the end
            assert len(ask(b"", timeout=PATIENCE_S)) == 2 << 20
        assert len(num_begun) < 10
    finally:
        transport.close()
        loop.close()
