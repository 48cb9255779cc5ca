"""The ports and sockets of listeners, under grpcio."""

from __future__ import annotations

import os
import socket
from typing import Any, cast

import grpc
import grpc.aio

from tfs.core.call import (
    ListenerOptions,
    TlsOptions,
    TlsSource,
)
from tfs.core.errors import (
    Unavailable,
)
from tfs.frontends.rpc.unix_socket import UNIX


def bind(server: Any, listener: ListenerOptions) -> str:
    """Opens ``listener`` on a grpcio server; returns the address with its real port.

    Raises:
        Unavailable: The address is in use.

    """
    address = listener.address
    try:
        if listener.tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(listener.tls))
    except RuntimeError as error:
        raise _cannot_listen(listener) from error
    if not port:
        raise _cannot_listen(listener)
    if address.startswith(UNIX):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Returns credentials that ask for the certificates at every handshake."""
    first = taken = source.current()

    def renewed() -> grpc.ServerCertificateConfiguration:
        # Runs on gRPC's threads. None, which grpcio's types omit, keeps the last ones.
        nonlocal taken
        tls = source.current()
        if tls is taken:
            return cast(grpc.ServerCertificateConfiguration, None)
        taken = tls
        return _configuration(tls)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), renewed, first.verify_client
    )


def _configuration(tls: TlsOptions) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.server_key, tls.server_cert)], tls.client_ca or None
    )


def _cannot_listen(listener: ListenerOptions) -> Unavailable:
    return Unavailable(
        f"cannot listen on {listener.address} ({listener.name}): the address is in "
        "use or not this machine's; choose another port or stop what holds it"
    )


def number(address: str) -> int:
    """Returns the port of "host:port"."""
    return int(address.rpartition(":")[2])


def is_open(address: str) -> bool:
    """Tells whether a server listens at an address, without disturbing that server."""
    if address.startswith(UNIX):
        return os.path.exists(address.removeprefix(UNIX))
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # With this option, binding fails only if another socket listens there.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError:
            return True
    return False
