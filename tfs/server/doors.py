"""The doors of a server: at which addresses it listens, and which services each has."""

from __future__ import annotations

from collections.abc import Sequence

from tfs.core.call import ListenerOptions
from tfs.handlers.admin import SERVICE as ADMIN_SERVICE
from tfs.handlers.admin_access import ADMIN_LISTENER
from tfs.handlers.methods import MODEL
from tfs.server.options import ServerOptions
from tfs.server.tls import TlsFile


def listeners(options: ServerOptions) -> Sequence[ListenerOptions]:
    """Returns the doors that the options ask for.

    Raises:
        ServingError: The certificates cannot be read or used.

    """
    tls = TlsFile(options.ssl_config_file) if options.ssl_config_file else None
    doors = []
    if options.port or options.any_port:
        port = 0 if options.any_port else options.port
        host = options.grpc_host
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        doors.append(ListenerOptions("grpc", f"{host}:{port}", tls=tls))
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


def tls_problems(doors: Sequence[ListenerOptions]) -> Sequence[str]:
    """Returns what is wrong with the doors' certificates, one sentence each."""
    files = [door.tls for door in doors if isinstance(door.tls, TlsFile)]
    return [file.problem for file in files if file.problem]
