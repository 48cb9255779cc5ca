"""TLS under express: handshakes, sessions, and who is let in."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.frontends.express.rig import RawClient, Rig, running
from tests.frontends.express.wire import (
    HELLO,
    request,
)
from tests.frontends.later_executor import LaterExecutor
from tests.frontends.tls_client import TlsClient, trusting
from tfs.core.call import TlsOptions
from tfs.frontends.express.client_state import ExpressOptions


@pytest.fixture(scope="module")
def made() -> Certificates:
    return Certificates()


@pytest.fixture
def rig(tmp_path: Path, made: Certificates) -> Iterator[Rig]:
    with running(tmp_path, tls=made.tls()) as rig:
        yield rig


class TlsSocket:
    """A non-blocking socket of :class:`RawClient`'s, encrypted."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        self.raw = raw
        self.client = TlsClient(context)
        raw.send(self.client.take(b""))

    def send(self, data: bytes) -> int:
        sent = self.client.encrypt(data)
        assert self.raw.send(sent) == len(sent)
        return len(data)

    def recv(self, num_bytes: int) -> bytes:
        data = self.raw.recv(num_bytes)
        if not data:
            return b""
        if not self.client.is_done:
            self.raw.send(self.client.take(data))
            return self.recv(num_bytes)
        self.client.incoming.write(data)
        plain = b""
        try:
            while part := self.client.tls.read(1 << 20):
                plain += part
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return plain
        return plain or self.recv(num_bytes)

    def close(self) -> None:
        self.raw.close()


def secured(rig: Rig, context: ssl.SSLContext) -> RawClient:
    """Returns a connected client that has sent its hello."""
    client = RawClient(rig.path)
    rig.clients.append(client)
    client.socket = TlsSocket(client.socket, context)  # type: ignore[assignment]
    rig.settle()
    client.read()
    rig.settle()
    client.send(HELLO)
    rig.settle()
    client.read()
    return client


# -- sessions --------------------------------------------------------------------------


def test_a_request_may_come_with_the_end_of_the_handshake(
    rig: Rig, made: Certificates
) -> None:
    """What the client encrypted at once waits in the stream, and is not forgotten."""
    raw = RawClient(rig.path)
    rig.clients.append(raw)
    client = TlsClient(trusting(made))
    raw.send(client.take(b""))
    rig.settle()
    raw.send(client.take(raw.socket.recv(1 << 16)) + client.encrypt(HELLO + request(1)))
    rig.settle()
    client.incoming.write(raw.socket.recv(1 << 16))
    assert b"ping" in client.tls.read(1 << 16) + client.read()


def test_who_ends_its_connection_is_gone(rig: Rig, made: Certificates) -> None:
    """close_notify closes as the end of the socket does."""
    client = secured(rig, trusting(made))
    with pytest.raises(ssl.SSLWantReadError):
        client.socket.client.tls.unwrap()  # type: ignore[attr-defined]
    client.socket.raw.send(  # type: ignore[attr-defined]
        client.socket.client.outgoing.read()  # type: ignore[attr-defined]
    )
    rig.settle()
    assert not rig.transport.clients.sessions
    assert rig.transport.clients.counters.failures == 0
    assert rig.transport.budget.used_bytes == 0


def test_a_drained_connection_says_goodbye(rig: Rig, made: Certificates) -> None:
    """GOAWAY and then close_notify: the client knows that nothing was cut off."""
    client = secured(rig, trusting(made))
    rig.loop.post(rig.transport.clients.begin_drain)
    rig.settle()
    rig.advance(2.0)
    client.read()
    assert client.goaway is not None
    assert client.is_closed
    assert client.socket.client.tls.read(1) == b""  # type: ignore[attr-defined]


def test_a_changed_byte_ends_the_connection(rig: Rig, made: Certificates) -> None:
    """What was not encrypted by the peer is not read, and is no failure of ours."""
    client = secured(rig, trusting(made))
    secret: TlsSocket = client.socket  # type: ignore[assignment]
    sent = bytearray(secret.client.encrypt(request(1)))
    sent[-1] ^= 1
    secret.raw.send(sent)
    rig.settle()
    assert not rig.transport.clients.sessions
    assert rig.served == []
    assert rig.transport.clients.counters.failures == 0


# -- handshakes ------------------------------------------------------------------------


def test_a_handshake_may_be_cut_anyhow(rig: Rig, made: Certificates) -> None:
    """It comes in pieces of any size, and so do the requests behind it."""
    raw = RawClient(rig.path)
    rig.clients.append(raw)
    client = TlsClient(trusting(made))
    waiting = client.take(b"")
    while not client.is_done:
        for index in range(0, len(waiting), 100):
            raw.send(waiting[index : index + 100])
            rig.settle()
        waiting = client.take(raw.socket.recv(1 << 16))
    waiting += client.encrypt(HELLO) + client.encrypt(request(1))
    for index in range(0, len(waiting), 7):
        raw.send(waiting[index : index + 7])
        rig.settle()
    client.incoming.write(raw.socket.recv(1 << 16))
    assert b"ping" in client.tls.read(1 << 16) + client.read()


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
def test_a_client_must_offer_http_2(
    rig: Rig, made: Certificates, protocols: list[str]
) -> None:
    """Without ALPN, or with another protocol, there is no connection."""
    context = ssl.create_default_context(cadata=made.authority.decode())
    if protocols:
        context.set_alpn_protocols(protocols)
    raw = RawClient(rig.path)
    rig.clients.append(raw)
    client = TlsClient(context)
    raw.send(client.take(b""))
    rig.settle()
    raw.send(client.take(raw.socket.recv(1 << 16)))
    rig.settle()
    assert rig.transport.clients.counters.failed_handshakes == 1
    assert not rig.transport.clients.sessions


def test_noise_and_endless_messages_end_a_handshake(rig: Rig) -> None:
    """A client cannot fill memory, or keep the server busy, before it is known."""
    hello = b"\x16\x03\x01\x40\x00\x01\x01\xff\xff" + bytes(16_380)
    record = b"\x16\x03\x01\x40\x00" + bytes(16_384)
    for pieces in ([b"\x16\x03\x01\xff\xff" + bytes(100)], [hello, *[record] * 20]):
        client = rig.connect(b"")
        for piece in pieces:
            if not client.is_closed:
                with contextlib.suppress(OSError):
                    client.socket.send(piece)
                rig.settle()
                client.read()
        assert client.is_closed
    assert rig.transport.clients.counters.failed_handshakes == 2
    assert rig.transport.budget.used_bytes == 0


def test_a_handshake_counts_what_it_takes(rig: Rig) -> None:
    """Who is not through yet has no window and no session; in time it is closed."""
    client = rig.connect(b"\x16\x03\x01")
    rig.settle()
    assert 0 < rig.transport.budget.used_bytes < 1 << 15
    assert len(rig.transport.clients.handshakes.under_way) == 1
    rig.advance(11.0)
    client.read()
    assert client.is_closed
    assert rig.transport.clients.counters.failed_handshakes == 1
    assert rig.transport.clients.counters.timeouts == 1
    assert rig.transport.budget.used_bytes == 0


def test_slow_handshakes_make_way(tmp_path: Path, made: Certificates) -> None:
    """A crowd that says nothing keeps nobody out: its oldest member is closed."""
    options = ExpressOptions(max_handshakes=3)
    with running(tmp_path, options, tls=made.tls()) as rig:
        slow = [rig.connect(b"") for _ in range(3)]
        client = secured(rig, trusting(made))
        client.send(request(1))
        rig.settle()
        assert client.answer(1).messages == [b"ping"]
        for each in slow:
            each.read()
        assert [each.is_closed for each in slow] == [True, False, False]


def test_handshakes_are_worked_on_off_the_loop(
    tmp_path: Path, made: Certificates
) -> None:
    """The loop reads on only when a step is done; a client that leaves is no harm."""
    executor = LaterExecutor()
    with running(tmp_path, executor=executor, tls=made.tls()) as rig:
        gone, stays = rig.connect(b""), rig.connect(b"")
        for client in (gone, stays):
            client.send(TlsClient(trusting(made)).take(b""))
        rig.settle()
        assert len(executor.jobs) == 2
        assert all(each.is_busy for each in rig.transport.clients.handshakes.under_way)
        gone.close()
        rig.settle()
        for job in executor.jobs:
            job()
        rig.settle()
        assert len(rig.transport.clients.handshakes.under_way) == 1
        assert stays.socket.recv(1 << 16)[:1] == b"\x16"


def test_a_busy_server_refuses_rather_than_queues_handshakes(
    tmp_path: Path, made: Certificates
) -> None:
    """Where all of them wait for us, one more would only make all of them later."""
    executor = LaterExecutor()
    options = ExpressOptions(max_handshakes=1)
    with running(tmp_path, options, executor, made.tls()) as rig:
        first = rig.connect(b"")
        first.send(TlsClient(trusting(made)).take(b""))
        rig.settle()
        second = rig.connect(b"")
        assert second.is_closed
        assert rig.transport.clients.counters.refused_connections == 1
        for job in executor.jobs:
            job()
        rig.settle()


class _Failing:
    """Certificates that are there once."""

    def __init__(self, tls: TlsOptions) -> None:
        self.tls = tls
        self.num_asked = 0

    def current(self) -> TlsOptions:
        self.num_asked += 1
        if self.num_asked > 1:
            raise RuntimeError("meant to fail")
        return self.tls


def test_a_failure_of_our_own_costs_one_handshake(
    tmp_path: Path, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged as an error; the loop goes on."""
    with running(tmp_path, tls=_Failing(made.tls())) as rig:
        client = rig.connect(b"")
        client.send(TlsClient(trusting(made)).take(b""))
        rig.settle()
        client.read()
        assert client.is_closed
        assert "meant to fail" in caplog.text


def test_plain_http_is_answered_in_plain_text(rig: Rig) -> None:
    """What is not gRPC gets a clean status; a gRPC client without TLS just an end."""
    client = RawClient(rig.path)
    rig.clients.append(client)
    client.send(b"GET /v1/models/digits HTTP/1.1\r\nhost: localhost\r\n\r\n")
    rig.settle()
    head, _, body = client.socket.recv(4096).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b"TLS" in body
    greeting = RawClient(rig.path)
    rig.clients.append(greeting)
    greeting.send(HELLO)
    rig.settle()
    greeting.read()
    assert greeting.is_closed
    assert b"HTTP" not in greeting.data
    assert rig.transport.clients.counters.failed_handshakes == 2


def test_a_grpc_client_without_tls_is_named_in_the_log_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """All it can be told is that the socket is closed; its operator reads why."""
    for piece in (HELLO, HELLO[:5], b"nonsense"):
        client = RawClient(rig.path)
        rig.clients.append(client)
        client.send(piece)
        rig.settle()
        client.read()
        assert client.is_closed
    assert rig.transport.clients.counters.failed_handshakes == 3
    (record,) = [r for r in caplog.records if "client_without_tls" in r.getMessage()]
    assert record.levelname == "WARNING"
    assert "secure channel" in record.getMessage()


def test_strangers_are_told_why(tmp_path: Path, made: Certificates) -> None:
    """The alert reaches a client without a certificate before the socket closes."""
    with running(tmp_path, tls=made.tls(mutual=True)) as rig:
        raw = RawClient(rig.path)
        rig.clients.append(raw)
        client = TlsClient(trusting(made))
        raw.send(client.take(b""))
        rig.settle()
        raw.send(client.take(raw.socket.recv(1 << 16)))
        rig.settle()
        client.incoming.write(raw.socket.recv(1 << 16))
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            client.tls.read(1)
        assert rig.transport.clients.counters.failed_handshakes == 1
