"""A server's ``SSLContext``, out of PEM contents in memory."""

from __future__ import annotations

import logging
import os
import ssl
from typing import Final

from tfs.core.call import TlsOptions, TlsSource
from tfs.core.errors import InvalidArgument

log = logging.getLogger(__name__)

H2: Final = "h2"
HTTP_1: Final = "http/1.1"
# RFC 9113, section 9.2.2: TLS 1.2 needs forward secrecy and an AEAD. TLS 1.3 has
# no others.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context(tls: TlsOptions, protocol: str = H2) -> ssl.SSLContext:
    """Returns a context for TLS 1.2 and 1.3 that offers one protocol.

    A client without a certificate of ``client_ca`` is turned away if
    ``verify_client`` is set; otherwise it is not asked for one.

    Raises:
        InvalidArgument: Naming the field and what is wrong with it, never the key.

    """
    for name, value in (
        ("server_key", tls.server_key),
        ("server_cert", tls.server_cert),
    ):
        if not value:
            raise InvalidArgument(f"{name} is empty; it takes the PEM text itself")
    if tls.verify_client and not tls.client_ca:
        raise InvalidArgument(
            "client_verify needs custom_ca, the PEM text of what signs the clients' "
            "certificates"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([protocol])
    try:
        _load(context, tls.server_cert, tls.server_key)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidArgument(
            "server_cert and server_key are not a PEM certificate chain and its "
            f"unencrypted key: {_reason(error)}"
        ) from None
    if tls.client_ca:
        try:
            context.load_verify_locations(cadata=tls.client_ca.decode())
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgument(
                f"custom_ca is no PEM certificate: {_reason(error)}"
            ) from None
    if tls.verify_client:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsContexts:
    """The context of a listener, made anew when its certificates are renewed.

    For one thread at a time.

    Attributes:
        protocol: What its connections speak.
        saw_plain_client: Whether the log tells already of a client without TLS.

    Raises:
        InvalidArgument: On creation: the certificates cannot be used.

    """

    def __init__(self, source: TlsSource, protocol: str) -> None:
        self.protocol = protocol
        self.saw_plain_client = False
        self._source = source
        self._tls: TlsOptions = source.current()
        self._context = server_context(self._tls, protocol)

    def current(self) -> ssl.SSLContext:
        """Returns the context for a new connection; may read files.

        Certificates that cannot be used are logged once, and the last ones stay.
        """
        tls = self._source.current()
        if tls is not self._tls:
            self._tls = tls
            try:
                self._context = server_context(tls, self.protocol)
            except InvalidArgument as error:
                log.error("event=certificates_refused error=%r", error.message)
        return self._context


def _load(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    # The ssl module reads only files. These are in memory and private to this process.
    fds = [_in_memory(cert), _in_memory(key)]
    try:
        cert_path, key_path = [f"/proc/self/fd/{fd}" for fd in fds]
        context.load_cert_chain(cert_path, key_path, _no_password)
    finally:
        for fd in fds:
            os.close(fd)


def _in_memory(content: bytes) -> int:
    fd = os.memfd_create("tls", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    return fd


def _no_password() -> str:
    # Without this OpenSSL would ask for an encrypted key's password on the terminal.
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
