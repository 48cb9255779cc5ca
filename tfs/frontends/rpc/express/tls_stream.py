"""A server's end of one TLS connection, without a socket.

Bytes of the network go in, bytes of HTTP/2 come out, and the other way about; the
caller owns the socket. Between calls at most one unfinished record waits in here, and
buffers are kept that have room for a few: bytes go through in portions.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Final

from tfs.frontends.rpc.tls_context import ALPN_PROTOCOL

_RECORD_BYTES: Final = 16_384
# What is put into OpenSSL's buffers at a time: each keeps, for as long as its connection
# lives, a third more than it ever held.
_PORTION_BYTES: Final = 2 * _RECORD_BYTES
# OpenSSL's own bounds of a client's hello and of its certificates, together.
_MAX_HANDSHAKE_BYTES: Final = 262_144


class TlsFault(Exception):
    """The connection cannot go on; :meth:`TlsStream.take_output` may tell the peer."""


class TlsStream:
    """The state of one connection's encryption.

    Not thread-safe: one thread at a time, and not always the same one.

    Args:
        context: The server's, as of :func:`tfs.frontends.rpc.tls_context`.

    """

    __slots__ = ("_handshake_bytes", "_incoming", "_outgoing", "_tls")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake_bytes = 0

    def handshake(self, data: bytes) -> bool:
        """Takes bytes of the handshake; returns whether it is complete.

        Costs 0.4 to 2 ms of CPU when keys are used: not for the serving loop.

        Raises:
            TlsFault: The peer does not speak TLS as we do, is not whom we trust, or
                does not speak HTTP/2 over it.

        """
        self._handshake_bytes += len(data)
        if self._handshake_bytes > _MAX_HANDSHAKE_BYTES:
            raise TlsFault("endless handshake")
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsFault(error.reason or str(error)) from None
        if self._tls.selected_alpn_protocol() != ALPN_PROTOCOL:
            raise TlsFault("the client does not offer h2 (ALPN)")
        return True

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Takes bytes; returns what whole records hold, and whether the peer ended.

        Raises:
            TlsFault: They are not what the peer encrypted.

        """
        incoming, tls = self._incoming, self._tls
        parts: list[bytes] = []
        has_ended = False
        view = memoryview(data)
        try:
            while True:
                if view:
                    incoming.write(view[:_PORTION_BYTES])
                    view = view[_PORTION_BYTES:]
                try:
                    while incoming.pending or tls.pending():
                        part = tls.read(_RECORD_BYTES)
                        if not part:
                            has_ended = True
                            break
                        parts.append(part)
                except ssl.SSLWantReadError:
                    pass
                if has_ended or not view:
                    break
        except ssl.SSLZeroReturnError:
            has_ended = True
        except ssl.SSLError as error:
            raise TlsFault(error.reason or str(error)) from None
        return parts[0] if len(parts) == 1 else b"".join(parts), has_ended

    def encrypt(self, data: bytes) -> list[bytes]:
        """Returns what to send for ``data``, whatever was due before it included.

        Raises:
            TlsFault: The connection is broken.

        """
        parts: list[bytes] = []
        view = memoryview(data)
        try:
            while view:
                self._tls.write(view[:_PORTION_BYTES])
                view = view[_PORTION_BYTES:]
                parts.append(self._outgoing.read())
        except ssl.SSLError as error:
            raise TlsFault(error.reason or str(error)) from None
        return parts

    def take_output(self) -> bytes:
        """Returns what to send besides data: handshake, key updates, alerts."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Returns the last bytes to send, which say that nothing follows."""
        with contextlib.suppress(ssl.SSLError):  # nobody waits for the peer's end
            self._tls.unwrap()
        return self._outgoing.read()

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the client's verified certificate; empty without one only.

        Its alternative names; its common name if it has none, as grpcio has it; else
        what its subject says at all, or its number: an unnamed client is verified too.
        """
        certificate: Any = self._tls.getpeercert()  # nested tuples of names
        if not certificate:
            return ()
        alternative = certificate.get("subjectAltName", ())
        if alternative:
            return tuple(str(value) for _, value in alternative)
        subject = [pair for part in certificate["subject"] for pair in part]
        common = [str(value) for key, value in subject if key == "commonName"]
        others = [f"{key}={value}" for key, value in subject]
        return tuple(common or others or [f"serial={certificate['serialNumber']}"])
