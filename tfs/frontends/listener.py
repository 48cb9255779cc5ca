"""Sockets that listen: "host:port", "[v6]:port" or "unix:/absolute/path"."""

from __future__ import annotations

import contextlib
import os
import socket

from tfs.core.call import ListenerOptions, Peer
from tfs.core.errors import InvalidArgument, Unavailable
from tfs.frontends.tcp_socket import accept_tcp, bind_tcp
from tfs.frontends.tls.tls_context import TlsContexts
from tfs.frontends.unix_socket import UNIX, bind_unix, remedy


class Listener:
    """Bound, listening, non-blocking sockets.

    Created on any thread; from then on confined to the serving loop.

    Attributes:
        options: The options that it was made with.
        address: Where it listens, with the real port.
        sockets: One socket, or one for each address of a host's name.
        tls: The TLS contexts of its connections; None for plain text.

    Raises:
        Unavailable: The address is in use, unknown or not ours, or the certificates
            cannot be used; nothing is open.
        ValueError: The address cannot be parsed.

    """

    def __init__(self, options: ListenerOptions) -> None:
        self.options = options
        self.tls: TlsContexts | None = None
        if options.tls is not None:
            try:
                self.tls = TlsContexts(options.tls, options.protocol)
            except InvalidArgument as error:
                raise Unavailable(
                    f"cannot listen on {options.address} ({options.name}): "
                    f"{error.message}"
                ) from error
        self._unix_path = ""
        try:
            if options.address.startswith(UNIX):
                self._unix_path = options.address.removeprefix(UNIX)
                self.sockets = [bind_unix(self._unix_path, options.unix_mode)]
                self.address = options.address
            else:
                self.sockets, self.address = bind_tcp(options.address)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {options.address} ({options.name}): "
                f"{error.strerror or error}; {remedy(self._unix_path, error)}"
            ) from error

    def accept(self, listening: socket.socket) -> tuple[socket.socket, Peer]:
        """Returns a new connection's socket, non-blocking, and its peer.

        Args:
            listening: The one of ``sockets`` to accept from.

        Raises:
            OSError: As ``accept``; BlockingIOError if no connection waits.

        """
        if self._unix_path:
            client, _ = listening.accept()
            client.setblocking(False)
            # Only processes on this machine can open the path.
            return client, Peer(self.address, self.options.name, is_loopback=True)
        client, address, is_loopback = accept_tcp(listening)
        return client, Peer(address, self.options.name, is_loopback)

    def close(self) -> None:
        """Stops listening; removes a Unix socket's path if it is still ours."""
        if self.sockets[0].fileno() < 0:
            return
        if self._unix_path:
            # This comes first: a path on which nobody listens may be another server's
            # soon.
            with contextlib.suppress(OSError):
                os.unlink(self._unix_path)
        for each in self.sockets:
            each.close()
