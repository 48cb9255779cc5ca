"""A server's end of one TLS connection, without a socket.

It turns bytes from the network into bytes of HTTP and back; the caller owns the
socket. Bytes pass through in portions. So between calls at most one unfinished record
is held, and the buffers have room for only a few.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Final

from tfs.frontends.tls.tls_context import H2

_RECORD_BYTES: Final = 16_384
# Bytes put into OpenSSL's buffers at a time. As long as the connection lives, each
# buffer keeps a third more memory than it ever held.
_PORTION_BYTES: Final = 2 * _RECORD_BYTES
# The sum of OpenSSL's own limits for a client's hello and for its certificates.
_MAX_HANDSHAKE_BYTES: Final = 262_144


class TlsFault(Exception):
    """The connection cannot go on; :meth:`TlsStream.take_output` may tell the peer."""


class TlsStream:
    """The state of one connection's encryption.

    Not thread-safe: one thread at a time, and not always the same one.

    Args:
        context: The server's, as of :func:`tfs.frontends.tls.tls_context`.
        protocol: What it offers. Clients have to ask for HTTP/2; HTTP/1.1 is what those
            speak that ask for nothing.

    """

    __slots__ = ("_handshake_bytes", "_incoming", "_outgoing", "_protocol", "_tls")

    def __init__(self, context: ssl.SSLContext, protocol: str = H2) -> None:
        self._protocol = protocol
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake_bytes = 0

    def handshake(self, data: bytes) -> bool:
        """Takes bytes of the handshake; returns whether it is complete.

        A step that uses keys takes 0.4 to 2 ms of CPU, so this must not run on the
        serving loop.

        Raises:
            TlsFault: The peer uses no TLS that we accept, is not trusted, or does not
                speak the protocol over it.

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
        if self._protocol == H2 and self._tls.selected_alpn_protocol() != H2:
            raise TlsFault("the client does not offer h2 (ALPN)")
        return True

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Returns what whole records contain, and whether the peer has ended.

        Raises:
            TlsFault: The bytes are not what the peer encrypted.

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
        """Returns the bytes to send for ``data``, after any that were due before.

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
        """Returns the bytes to send besides data: handshake, key updates, alerts."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Returns the last bytes to send, which tell the peer that nothing follows."""
        with contextlib.suppress(ssl.SSLError):  # does not wait for the peer's own end
            self._tls.unwrap()
        return self._outgoing.read()

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the client's verified certificate; empty only without one.

        These are its alternative names. Without these it is its common name, as in
        grpcio; without that its whole subject, or its serial number, because a client
        without a name is verified too.
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
