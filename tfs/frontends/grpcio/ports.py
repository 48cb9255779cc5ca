"""The ports and sockets of listeners, under grpcio."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any, cast

import grpc
import grpc.aio

from tfs.core.call import ListenerOptions, TlsOptions, TlsSource
from tfs.core.errors import InvalidArgument, Unavailable
from tfs.frontends.tls.tls_context import server_context
from tfs.frontends.unix_socket import UNIX

log = logging.getLogger(__name__)

_PRIVATE_UMASK = 0o077


def bind(server: Any, listener: ListenerOptions) -> str:
    """Opens ``listener`` on a grpcio server; returns the address with its real port.

    Raises:
        Unavailable: The address is in use, also by a live server on a socket's path, or
            the certificates cannot be used.

    """
    address = listener.address
    is_unix = address.startswith(UNIX)
    # grpcio replaces whatever socket file it finds, that of a live server as well.
    if is_unix and _is_answering(address.removeprefix(UNIX)):
        raise _cannot_listen(listener, "a server answers there; stop it first")
    try:
        if listener.tls is None or is_unix:
            with _private_files() if is_unix else contextlib.nullcontext():
                port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(listener.tls))
    except InvalidArgument as error:
        raise _cannot_listen(listener, error.message) from error
    except (RuntimeError, ValueError) as error:
        raise _cannot_listen(listener, str(error)) from error
    if not port:
        raise _cannot_listen(listener, "grpcio does not say why")
    if is_unix:
        os.chmod(address.removeprefix(UNIX), listener.unix_mode)
        return address
    return f"{address.rpartition(':')[0]}:{port}"


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Makes new files ours alone, in the whole process, for the moment of a bind."""
    before = os.umask(_PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def _credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Returns credentials that ask for the certificates at every handshake.

    Raises:
        InvalidArgument: The certificates cannot be used.

    """
    first = taken = source.current()
    server_context(first)

    def renewed() -> grpc.ServerCertificateConfiguration:
        # On grpcio's threads. None keeps the last ones; grpcio's types do not know it.
        nonlocal taken
        tls = source.current()
        if tls is not taken:
            taken = tls
            try:
                server_context(tls)
            except InvalidArgument as error:
                log.error("event=certificates_refused error=%r", error.message)
            else:
                return _configuration(tls)
        return cast(grpc.ServerCertificateConfiguration, None)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), renewed, first.verify_client
    )


def _configuration(tls: TlsOptions) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.server_key, tls.server_cert)], tls.client_ca or None
    )


def _cannot_listen(listener: ListenerOptions, why: str) -> Unavailable:
    return Unavailable(
        f"cannot listen on {listener.address} ({listener.name}): {why}; "
        "choose another address or stop what holds it"
    )


def _is_answering(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # alive, with a full backlog
            return True
        except OSError:
            return False
    return True
