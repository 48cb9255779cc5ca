"""TLS under express: handshakes, records cut anyhow, and who is let in."""

from __future__ import annotations

import collections
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import CLIENT_NAME, Certificates
from tests.frontends.express.rig import HOLD, RawClient, Rig, head, running
from tests.frontends.express.wire import (
    HELLO,
    OPEN_WINDOWS,
    data_frame,
    prefixed,
    request,
)
from tfs.core.call import TlsOptions
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.tls_stream import TlsFault, TlsStream
from tfs.frontends.rpc.tls_context import server_context


@pytest.fixture(scope="module")
def made() -> Certificates:
    return Certificates()


@pytest.fixture
def rig(tmp_path: Path, made: Certificates) -> Iterator[Rig]:
    with running(tmp_path, tls=made.tls()) as rig:
        yield rig


def trusting(made: Certificates, folder: Path | None = None) -> ssl.SSLContext:
    """Returns a client's context, with a certificate of its own if given a folder."""
    context = ssl.create_default_context(cadata=made.authority.decode())
    context.set_alpn_protocols(["h2"])
    if folder is not None:
        pem = folder / "client.pem"
        pem.write_bytes(b"".join(made.client_pem()))
        context.load_cert_chain(pem)
    return context


class TlsClient:
    """A client's end of TLS, without a socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )
        self.is_done = False

    def take(self, data: bytes) -> bytes:
        """Goes on with the handshake; returns what to send."""
        self.incoming.write(data)
        try:
            self.tls.do_handshake()
            self.is_done = True
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


def shake_hands(server: TlsStream, client: TlsClient, piece: int = 1 << 20) -> None:
    """Completes a handshake, the client's bytes delivered in pieces."""
    answer = b""
    is_done = False
    while not (is_done and client.is_done):
        sent = client.take(answer)
        for index in range(0, len(sent), piece):
            is_done = server.handshake(sent[index : index + piece])
        answer = server.take_output()
    client.incoming.write(answer)  # session tickets


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


# -- the stream, without a socket ------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_bytes_may_be_cut_anyhow(made: Certificates, piece: int) -> None:
    """Handshake and records come in pieces of any size."""
    server = TlsStream(server_context(made.tls()))
    client = TlsClient(trusting(made))
    shake_hands(server, client, piece)
    text = bytes(range(256)) * 200
    sent = client.encrypt(text)
    received = b""
    for index in range(0, len(sent), piece):
        plain, has_ended = server.decrypt(sent[index : index + piece])
        received += plain
        assert not has_ended
    assert received == text
    client.incoming.write(b"".join(server.encrypt(text)))
    assert b"".join(iter(lambda: _read(client), b"")) == text


def test_openssl_s_buffers_stay_small(made: Certificates) -> None:
    """They keep what they ever had room for: sixty clients' took 20 MB."""
    server = TlsStream(server_context(made.tls()))
    client = TlsClient(trusting(made))
    shake_hands(server, client)
    text = bytes(1 << 18)
    written: list[int] = []

    class Incoming:
        def __init__(self, buffer: ssl.MemoryBIO) -> None:
            self.buffer = buffer

        @property
        def pending(self) -> int:
            return self.buffer.pending

        def write(self, data: memoryview) -> int:
            written.append(len(data) + self.pending)
            return self.buffer.write(data)

    server._incoming = Incoming(server._incoming)  # type: ignore[assignment]
    assert server.decrypt(client.encrypt(text)) == (text, False)
    assert max(written) <= 49_152
    assert max(map(len, server.encrypt(text))) <= 49_152


def _read(client: TlsClient) -> bytes:
    try:
        return client.tls.read(1 << 20)
    except ssl.SSLWantReadError:
        return b""


def test_a_peer_that_ends_is_noticed_after_its_last_words(made: Certificates) -> None:
    """close_notify ends the stream; what came before it is still delivered."""
    server = TlsStream(server_context(made.tls()))
    client = TlsClient(trusting(made))
    shake_hands(server, client)
    sent = client.encrypt(b"bye")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    assert server.decrypt(sent + client.outgoing.read()) == (b"bye", True)


def test_a_changed_byte_is_a_fault(made: Certificates) -> None:
    """What was not encrypted by the peer is not read."""
    server = TlsStream(server_context(made.tls()))
    client = TlsClient(trusting(made))
    shake_hands(server, client)
    sent = bytearray(client.encrypt(b"hello"))
    sent[-1] ^= 1
    with pytest.raises(TlsFault):
        server.decrypt(bytes(sent))


def test_a_client_must_offer_http_2(made: Certificates) -> None:
    """Without ALPN, or with another protocol, there is no connection."""
    for protocols in ([], ["http/1.1"]):
        context = ssl.create_default_context(cadata=made.authority.decode())
        if protocols:
            context.set_alpn_protocols(protocols)
        with pytest.raises(TlsFault, match="h2"):
            shake_hands(TlsStream(server_context(made.tls())), TlsClient(context))


def test_old_versions_of_tls_are_refused(made: Certificates) -> None:
    """TLS 1.2 is the oldest, with forward secrecy and authenticated ciphers only."""
    context = server_context(made.tls())
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    for cipher in context.get_ciphers():
        assert cipher["aead"]
        assert cipher["protocol"] == "TLSv1.3" or "ECDHE" in cipher["name"]


def test_an_endless_handshake_is_a_fault(made: Certificates) -> None:
    """A client cannot fill memory before it is known."""
    server = TlsStream(server_context(made.tls()))
    hello = b"\x16\x03\x01\x40\x00\x01\x01\xff\xff" + bytes(16_380)
    record = b"\x16\x03\x01\x40\x00" + bytes(16_384)
    with pytest.raises(TlsFault):
        collections.deque(map(server.handshake, [hello, *[record] * 20]), maxlen=0)


@pytest.mark.parametrize(
    "data",
    [HELLO, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(100), bytes(64)],
)
def test_what_is_not_tls_is_a_fault(made: Certificates, data: bytes) -> None:
    """Plain text and noise end the connection."""
    with pytest.raises(TlsFault):
        TlsStream(server_context(made.tls())).handshake(data)


# -- sessions --------------------------------------------------------------------------


def test_a_call_is_answered_over_tls(rig: Rig, made: Certificates) -> None:
    """The same session, encrypted; nothing is sent in the clear."""
    client = secured(rig, trusting(made))
    client.send(request(1) + request(3, b"pong"))
    rig.settle()
    assert client.answer(1).messages == [b"ping"]
    assert client.answer(3).messages == [b"pong"]


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
    assert b"ping" in client.tls.read(1 << 16) + _read(client)


def test_large_answers_are_sent_as_the_client_reads(
    rig: Rig, made: Certificates
) -> None:
    """A slow reader holds nobody up and gets every byte."""
    client = secured(rig, trusting(made))
    other = secured(rig, trusting(made))
    message = bytes(range(256)) * 4096
    client.send(OPEN_WINDOWS + head(1))
    rest = prefixed(message)
    while rest:
        rest = client.upload(1, rest)
        rig.settle()
    other.send(request(1))
    rig.settle()
    assert other.answer(1).messages == [b"ping"]
    for _ in range(10_000):
        if client.answer(1).has_ended:
            break
        rig.settle()
    assert client.answer(1).messages == [message]


def test_mutual_tls_tells_who_calls(tmp_path: Path, made: Certificates) -> None:
    """The names in the verified certificate are the peer's identity."""
    with running(tmp_path, tls=made.tls(mutual=True)) as rig:
        client = secured(rig, trusting(made, tmp_path))
        client.send(head(1, HOLD) + data_frame(1, prefixed(b"x")))
        rig.settle()
        assert CLIENT_NAME in rig.held[0].peer.identity
        rig.held.clear()


def test_who_ends_its_connection_is_gone(rig: Rig, made: Certificates) -> None:
    """close_notify closes as the end of the socket does."""
    client = secured(rig, trusting(made))
    with pytest.raises(ssl.SSLWantReadError):
        client.socket.client.tls.unwrap()  # type: ignore[attr-defined]
    client.socket.raw.send(  # type: ignore[attr-defined]
        client.socket.client.outgoing.read()  # type: ignore[attr-defined]
    )
    rig.settle()
    assert not rig.transport._sessions
    assert rig.transport.counters.failures == 0
    assert rig.transport.budget.used_bytes == 0


def test_a_drained_connection_says_goodbye(rig: Rig, made: Certificates) -> None:
    """GOAWAY and then close_notify: the client knows that nothing was cut off."""
    client = secured(rig, trusting(made))
    rig.loop.post(rig.transport._begin_drain)
    rig.settle()
    rig.advance(2.0)
    client.read()
    assert client.goaway is not None
    assert client.is_closed
    assert client.socket.client.tls.read(1) == b""  # type: ignore[attr-defined]


# -- handshakes ------------------------------------------------------------------------


def test_a_handshake_holds_nothing_of_the_budget(rig: Rig) -> None:
    """Who is not through yet has no window and no session; in time it is closed."""
    client = rig.connect(b"\x16\x03\x01")
    rig.settle()
    assert rig.transport.budget.used_bytes == 0
    assert rig.transport.num_handshakes == 1
    rig.advance(11.0)
    client.read()
    assert client.is_closed
    assert rig.transport.counters.failed_handshakes == 1
    assert rig.transport.counters.timeouts == 1


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


class _Later:
    """Runs functions when the test says so."""

    num_threads = num_free = 1

    def __init__(self) -> None:
        self.jobs: list[Callable[[], object]] = []

    def submit(self, fn: Callable[[], object]) -> None:
        self.jobs.append(fn)

    def excuse(self, num: int) -> None:
        pass

    def close(self, deadline_s: float | None = None) -> bool:
        return True


def test_handshakes_are_worked_on_off_the_loop(
    tmp_path: Path, made: Certificates
) -> None:
    """The loop reads on only when a step is done; a client that leaves is no harm."""
    executor = _Later()
    with running(tmp_path, executor=executor, tls=made.tls()) as rig:
        gone, stays = rig.connect(b""), rig.connect(b"")
        for client in (gone, stays):
            client.send(TlsClient(trusting(made)).take(b""))
        rig.settle()
        assert len(executor.jobs) == 2
        assert all(each.is_busy for each in rig.transport._acceptor.handshakes)
        gone.close()
        rig.settle()
        for job in executor.jobs:
            job()
        rig.settle()
        assert rig.transport.num_handshakes == 1
        assert stays.socket.recv(1 << 16)[:1] == b"\x16"


def test_a_busy_server_refuses_rather_than_queues_handshakes(
    tmp_path: Path, made: Certificates
) -> None:
    """Where all of them wait for us, one more would only make all of them later."""
    executor = _Later()
    options = ExpressOptions(max_handshakes=1)
    with running(tmp_path, options, executor, made.tls()) as rig:
        first = rig.connect(b"")
        first.send(TlsClient(trusting(made)).take(b""))
        rig.settle()
        second = rig.connect(b"")
        assert second.is_closed
        assert rig.transport.counters.refused_connections == 1


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
    assert rig.transport.counters.failed_handshakes == 2


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
    assert rig.transport.counters.failed_handshakes == 3
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
        assert rig.transport.counters.failed_handshakes == 1
