"""Real gRPC clients, synchronous and asyncio, over loopback.

What every transport promises is in tests/core/conformance; here is what only shows
under load, with large messages, with compression, and while draining.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import grpc
import grpc.aio
import pytest

from tests.threads import run_together
from tfs.core.call import Call, ListenerOptions, MethodKind, RpcMethod, StreamCall
from tfs.core.clock import MonotonicClock
from tfs.core.errors import Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2.state import ConnectionLimits
from tfs.testing.patience import PATIENCE_S

ECHO = "/t.Test/Echo"
HOLD = "/t.Test/Hold"
THREAD = "/t.Test/Thread"
BUSY = "/t.Test/Busy"
TICKS = "/t.Test/Ticks"
CHAT = "/t.Test/Chat"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


@dataclass
class Server:
    """A running express transport with a handful of methods."""

    options: ExpressOptions | None = None
    held: list[Call] = field(default_factory=list)
    cancelled: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(0)
    )
    taken: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.loop = ServingLoop(name="express-test")
        self.loop.start()
        self.transport = ExpressTransport(self.loop, self.options)
        methods = [
            RpcMethod(ECHO, lambda call: call.reply(bytes(call.message))),
            RpcMethod(HOLD, self._hold),
            RpcMethod(THREAD, self._thread),
            RpcMethod(BUSY, lambda call: call.fail(Unavailable("x", retry_after_s=2))),
            RpcMethod(TICKS, self._ticks, MethodKind.SERVER_STREAM),
            RpcMethod(CHAT, self._chat, MethodKind.BIDIRECTIONAL),
        ]
        (self.address,) = self.transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {method.path: method for method in methods},
        )

    def close(self) -> None:
        self.transport.close()
        self.loop.close(MonotonicClock.now() + PATIENCE_S)

    def _hold(self, call: Call) -> None:
        self.held.append(call)
        call.on_cancel(self.cancelled.release)
        self.taken.release()

    def _thread(self, call: Call) -> None:
        message = bytes(call.message)
        threading.Thread(target=lambda: call.reply(message)).start()

    def _ticks(self, call: StreamCall) -> None:
        size = int(bytes(call.message) or b"1")
        call.on_cancel(self.cancelled.release)
        left = 100

        def go_on() -> None:
            nonlocal left
            while left:
                if not call.send(b"x" * size):
                    # The client reads too slowly; a real handler would wait to be
                    # told, this one looks again soon.
                    self.loop.call_at(MonotonicClock.now() + 0.001, go_on)
                    return
                left -= 1
            call.finish()

        go_on()

    def _chat(self, call: StreamCall) -> None:
        def answer(message: bytes | memoryview) -> None:
            call.send(bytes(message))

        answer(call.message)
        call.on_message(answer)
        call.on_half_close(call.finish)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    channel = grpc.insecure_channel(server.address, options=OPTIONS)
    yield channel
    channel.close()


def test_many_threads_share_a_connection(server: Server, channel: grpc.Channel) -> None:
    """Every answer belongs to its request."""
    echo = channel.unary_unary(ECHO, bytes, bytes)
    wrong: list[object] = []

    def work(worker: int) -> None:
        for index in range(100):
            body = b"%d-%d" % (worker, index)
            if echo(body, timeout=PATIENCE_S) != body:
                wrong.append(body)

    run_together(*(partial(work, n) for n in range(8)))
    assert wrong == []
    assert server.transport.clients.counters.connections == 1


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_530, 1_000_000, 10_000_000])
def test_messages_of_any_size_pass(channel: grpc.Channel, size: int) -> None:
    """Around the frame and window sizes, and far beyond."""
    echo = channel.unary_unary(ECHO, bytes, bytes)
    body = os.urandom(size)
    assert echo(body, timeout=PATIENCE_S) == body


def test_a_message_beyond_the_limit_is_refused_and_the_next_is_served() -> None:
    """RESOURCE_EXHAUSTED reaches the client although it is still sending."""
    server = Server(
        ExpressOptions(limits=ConnectionLimits(max_message_bytes=1_000_000))
    )
    try:
        with grpc.insecure_channel(server.address, options=OPTIONS) as channel:
            echo = channel.unary_unary(ECHO, bytes, bytes)
            with pytest.raises(grpc.RpcError) as caught:
                echo(bytes(20_000_000), timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert echo(b"next", timeout=PATIENCE_S) == b"next"
    finally:
        server.close()


@pytest.mark.parametrize(
    "compression", [grpc.Compression.Gzip, grpc.Compression.Deflate]
)
def test_compressed_requests_are_understood(
    channel: grpc.Channel, compression: grpc.Compression
) -> None:
    """Compression chosen by the client, small and large."""
    echo = channel.unary_unary(ECHO, bytes, bytes)
    for body in (b"", b"x" * 10, b"abc" * 1_000_000):
        answer = echo(body, timeout=PATIENCE_S, compression=compression)
        assert answer == body


def test_metadata_of_every_kind_arrives(server: Server, channel: grpc.Channel) -> None:
    """Repeated keys, binary values, and a list near the limit."""
    hold = channel.unary_unary(HOLD, bytes, bytes)
    metadata: tuple[tuple[str, str | bytes], ...] = (
        ("k", "one"),
        ("k", "two"),
        ("b-bin", bytes(range(256))),
        ("long", "v" * 6000),
    )
    future = hold.future(b"", metadata=metadata, timeout=PATIENCE_S)
    assert server.taken.acquire(timeout=PATIENCE_S)
    (call,) = server.held
    seen = [pair for pair in call.metadata if pair[0] in ("k", "b-bin", "long")]
    assert sorted(seen, key=str) == sorted(metadata, key=str)
    call.reply(b"done")
    assert future.result(PATIENCE_S) == b"done"


def test_a_client_that_cancels_thousands_is_served_on(
    server: Server, channel: grpc.Channel
) -> None:
    """Hedging clients cancel half of what they send."""
    echo = channel.unary_unary(ECHO, bytes, bytes)
    hold = channel.unary_unary(HOLD, bytes, bytes)
    for _ in range(600):
        future = hold.future(b"", timeout=PATIENCE_S)
        assert echo(b"x", timeout=PATIENCE_S) == b"x"
        future.cancel()  # type: ignore[no-untyped-call]
        server.held.clear()
    assert server.transport.clients.counters.connections == 1
    assert server.transport.clients.counters.faults == 0


@pytest.mark.parametrize("size", [1, 1000, 200_000])
def test_a_server_stream_waits_for_a_slow_reader(
    channel: grpc.Channel, size: int
) -> None:
    """Nothing is lost between the client's windows and ours."""
    ticks = channel.unary_stream(TICKS, bytes, bytes)
    answers = ticks(b"%d" % size, timeout=PATIENCE_S)
    assert [len(answer) for answer in answers] == [size] * 100


def test_asyncio_clients_with_deadlines_are_served(server: Server) -> None:
    """Hundreds in flight, each with a deadline of its own, some from threads."""

    async def run() -> None:
        async with grpc.aio.insecure_channel(
            server.address, options=OPTIONS
        ) as channel:
            echo = channel.unary_unary(ECHO, bytes, bytes)
            thread = channel.unary_unary(THREAD, bytes, bytes)
            bodies = [b"%d" % index for index in range(1000)]
            answers = await asyncio.gather(
                *(
                    (thread if index % 10 == 0 else echo)(
                        body, timeout=PATIENCE_S + index / 100
                    )
                    for index, body in enumerate(bodies)
                )
            )
            assert list(answers) == bodies
            hold = channel.unary_unary(HOLD, bytes, bytes)
            calls = [hold(b"", timeout=0.05 + index / 1000) for index in range(50)]
            for call in calls:
                assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert server.transport.clients.counters.failures == 0


def test_draining_under_load_loses_no_accepted_request(server: Server) -> None:
    """Every call ends with its answer, or with UNAVAILABLE before it was taken."""
    outcomes: list[object] = []
    started = threading.Semaphore(0)

    def work() -> None:
        with grpc.insecure_channel(server.address, options=OPTIONS) as channel:
            thread = channel.unary_unary(THREAD, bytes, bytes)
            for index in range(10_000):
                try:
                    outcomes.append(thread(b"%d" % index, timeout=PATIENCE_S) != b"")
                except grpc.RpcError as error:
                    outcomes.append(error.code())
                    return
                started.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        assert started.acquire(timeout=PATIENCE_S)
    assert server.transport.drain(MonotonicClock.now() + PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert set(outcomes) <= {True, grpc.StatusCode.UNAVAILABLE}
    assert server.transport.clients.counters.cut_off_calls == 0


def test_clients_with_large_requests_share_a_small_budget() -> None:
    """Eight clients with eight requests of a quarter of it each: none is refused."""
    message = bytes(1_000_000)

    async def call_all(address: str) -> None:
        channels = [grpc.aio.insecure_channel(address, OPTIONS) for _ in range(8)]
        calls = [
            channel.unary_unary(THREAD, bytes, bytes)(message, timeout=PATIENCE_S)
            for channel in channels
            for _ in range(8)
        ]
        for answer in await asyncio.gather(*calls):
            assert len(answer) == len(message)
        for channel in channels:
            await channel.close(None)

    server = Server(ExpressOptions(max_receive_bytes=4 << 20))
    try:
        asyncio.run(call_all(server.address))
        assert server.transport.clients.counters.timeouts == 0
    finally:
        server.close()
