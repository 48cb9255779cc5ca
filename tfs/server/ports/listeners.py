"""The doors of a server: their addresses, services and certificates."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tfs.core.call import ListenerOptions
from tfs.frontends.tls_context import HTTP_1
from tfs.handlers.admin import SERVICE as ADMIN_SERVICE
from tfs.handlers.admin_access import ADMIN_LISTENER, HTTP
from tfs.handlers.service_names import MODEL
from tfs.server.options import ServerOptions
from tfs.server.ports.tls_file import TlsFile

log = logging.getLogger(__name__)


def listeners(options: ServerOptions) -> Sequence[ListenerOptions]:
    """Returns the doors that the options ask for.

    Raises:
        ServingError: The certificates cannot be read or used.

    """
    tls = TlsFile(options.ssl_config_file) if options.ssl_config_file else None
    doors = []
    if options.port or options.any_port:
        port = 0 if options.any_port else options.port
        doors.append(ListenerOptions("grpc", _address(options, port), tls=tls))
    if options.grpc_socket_path:
        doors.append(ListenerOptions("grpc-unix", f"unix:{options.grpc_socket_path}"))
    if options.admin_socket_path:
        doors.append(
            ListenerOptions(
                ADMIN_LISTENER,
                f"unix:{options.admin_socket_path}",
                services=frozenset({ADMIN_SERVICE, MODEL}),
                unix_mode=0o600,
            )
        )
    return doors


def http_listeners(options: ServerOptions) -> Sequence[ListenerOptions]:
    """Returns the doors of the HTTP port; none if its number is gRPC's, which is logged.

    Raises:
        ServingError: The certificates cannot be read or used.

    """
    doors = []
    port = options.rest_api_port
    if port and port == options.port and not options.any_port:
        log.error(
            "event=no_http why='--rest_api_port cannot be the same as --port: use "
            "another one'"
        )
    elif port:
        tls = TlsFile(options.ssl_config_file) if options.rest_api_tls else None
        doors.append(
            ListenerOptions(HTTP, _address(options, port), tls=tls, protocol=HTTP_1)
        )
    if options.rest_api_socket_path:
        path = f"unix:{options.rest_api_socket_path}"
        doors.append(ListenerOptions(f"{HTTP}-unix", path))
    return doors


def _address(options: ServerOptions, port: int) -> str:
    host = options.grpc_host
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{port}"


def tls_problems(doors: Sequence[ListenerOptions]) -> Sequence[str]:
    """Returns what is wrong with the doors' certificates, one sentence each."""
    files = [door.tls for door in doors if isinstance(door.tls, TlsFile)]
    return [file.problem for file in files if file.problem]
