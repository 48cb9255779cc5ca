"""What a client and the server say over TLS, cut anyhow, and who is let in."""

from __future__ import annotations

import collections
import ssl

import pytest

from tests.certificates import Certificates
from tests.frontends.express.wire import HELLO
from tests.frontends.tls_client import TlsClient, shake_hands, trusting
from tfs.frontends.tls.tls_context import server_context
from tfs.frontends.tls.tls_stream import TlsFault, TlsStream


@pytest.fixture(scope="module")
def made() -> Certificates:
    return Certificates()


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
    assert b"".join(iter(client.read, b"")) == text


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
