"""Hostile clients over real sockets, while a good one is served on.

Short forms run in the suite; the numbers of the promise run with ``-m stress``.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading

import grpc
import psutil
import pytest

from tests.certificates import Certificates
from tests.frontends.express.wire import (
    HELLO,
    request,
)
from tfs.core.call import Call, ListenerOptions, RpcMethod
from tfs.core.clock import MonotonicClock
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2 import frames
from tfs.testing.patience import PATIENCE_S

ECHO = "/tfs.test.Echo/Say"


class Server:
    def __init__(self, certificates: Certificates | None = None) -> None:
        self.certificates = certificates
        self.context = ssl.create_default_context(
            cadata=certificates.authority.decode() if certificates else None
        )
        self.context.set_alpn_protocols(["h2"])
        self.loop = ServingLoop(name="stress")
        self.loop.start()
        options = ExpressOptions(
            max_receive_bytes=32 << 20,
            no_progress_timeout_s=2,
        )
        self.transport = ExpressTransport(self.loop, options)
        (self.address,) = self.transport.start(
            [
                ListenerOptions(
                    "stress",
                    "127.0.0.1:0",
                    tls=certificates.tls() if certificates else None,
                )
            ],
            {ECHO: RpcMethod(ECHO, _echo)},
        )
        host, port = self.address.split(":")
        self.where = (host, int(port))

    def connect(self, data: bytes = HELLO) -> socket.socket:
        client = self.dial()
        if self.certificates is not None:
            client = self.context.wrap_socket(client, server_hostname="localhost")
        client.sendall(data)
        return client

    def dial(self) -> socket.socket:
        """Returns a connected socket, before any encryption."""
        return socket.create_connection(self.where, timeout=PATIENCE_S)

    def serves(self) -> bool:
        """Whether a real client is answered."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with (
            grpc.insecure_channel(self.address, options=options)
            if self.certificates is None
            else grpc.secure_channel(
                self.address, self.certificates.client_credentials(), options
            )
        ) as channel:
            echo = channel.unary_unary(ECHO, bytes, bytes)
            return bool(echo(b"still there?", timeout=PATIENCE_S) == b"still there?")

    def settle(self) -> None:
        """Waits until every connection is gone, for a bounded number of rounds."""
        for _ in range(1000):
            ran = threading.Event()
            self.loop.post(ran.set)
            assert ran.wait(PATIENCE_S)
            if not self.transport.clients.num_connections:
                break

    def close(self) -> None:
        self.transport.close()
        self.loop.close(MonotonicClock.now() + PATIENCE_S)


def _echo(call: Call) -> None:
    call.reply(bytes(call.message))


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_a_million_requests_leave_memory_as_it_was() -> None:
    """After the first hundred thousand, resident memory stays flat."""
    server = Server()
    process = psutil.Process()
    client = server.connect()
    try:
        before = 0
        stream_id = 1
        for batch in range(10_000):
            data = bytearray()
            for _ in range(100):
                data += request(stream_id)
                stream_id += 2
            client.sendall(data + frames.window_update(0, 900))
            expected = 100
            while expected > 0:
                answer = client.recv(1 << 16)
                assert answer, "the server closed the connection"
                expected -= answer.count(b"grpc-status")
            if batch == 1000:
                before = process.memory_info().rss
        assert process.memory_info().rss < before * 1.05 + (1 << 20)
    finally:
        client.close()
        server.close()


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _half_handshakes(server: Server, num_connections: int) -> None:
    rng = random.Random(4)
    hello = _client_hello()
    kept: list[socket.socket] = []
    for _ in range(num_connections):
        client = server.dial()
        data = rng.choice([hello, hello[: rng.randrange(len(hello))], HELLO, b"\x16"])
        with contextlib.suppress(OSError):
            client.sendall(data)
        kept.append(client)
        if len(kept) >= 100:
            rng.shuffle(kept)
            while len(kept) > 50:
                kept.pop().close()
    for client in kept:
        client.close()


def test_handshakes_begun_and_dropped_leave_nothing() -> None:
    """TLS handshakes that are dropped at any point leave nothing behind."""
    server = Server(Certificates())
    try:
        _half_handshakes(server, 300)
        assert server.serves()
        server.settle()
        assert not server.transport.clients.handshakes.under_way
        assert server.transport.budget.used_bytes == 0
        assert server.transport.clients.counters.failures == 0
    finally:
        server.close()


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_ten_thousand_half_handshakes_leave_memory_as_it_was() -> None:
    """Within 1.2 times of what it was after the first thousand."""
    server = Server(Certificates())
    process = psutil.Process()
    try:
        _half_handshakes(server, 1000)
        before = process.memory_info().rss
        _half_handshakes(server, 10_000)
        assert server.serves()
        assert process.memory_info().rss < 1.2 * before
    finally:
        server.close()
