"""A client's end of TLS, without a socket."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.certificates import Certificates


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

    def read(self) -> bytes:
        """Returns more of what was received, if any is left."""
        try:
            return self.tls.read(1 << 20)
        except ssl.SSLWantReadError:
            return b""
