"""Real gRPC clients, synchronous and asyncio, over loopback.

What every transport promises is in tests/core/conformance; here is what only shows
under load, with large messages, with compression, and while draining.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest

from tfs.core.call import Call, ListenerOptions, MethodKind, RpcMethod, StreamCall
from tfs.core.clock import MonotonicClock
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2.state import ConnectionLimits
from tfs.testing.patience import PATIENCE_S

ECHO = "/t.Test/Echo"
HOLD = "/t.Test/Hold"
THREAD = "/t.Test/Thread"
TICKS = "/t.Test/Ticks"
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

    def __post_init__(self) -> None:
        self.loop = ServingLoop(name="express-test")
        self.loop.start()
        self.transport = ExpressTransport(self.loop, self.options)
        methods = [
            RpcMethod(ECHO, lambda call: call.reply(bytes(call.message))),
            RpcMethod(HOLD, self.held.append),
            RpcMethod(THREAD, self._thread),
            RpcMethod(TICKS, self._ticks, MethodKind.SERVER_STREAM),
        ]
        (self.address,) = self.transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {method.path: method for method in methods},
        )

    def close(self) -> None:
        self.transport.close()
        self.loop.close(MonotonicClock.now() + PATIENCE_S)

    def _thread(self, call: Call) -> None:
        message = bytes(call.message)
        threading.Thread(target=lambda: call.reply(message)).start()

    def _ticks(self, call: StreamCall) -> None:
        size = int(bytes(call.message) or b"1")
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
