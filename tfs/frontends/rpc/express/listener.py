"""Sockets that listen: "host:port", "[v6]:port" or "unix:/absolute/path".

If the host is a name, the server listens on every address of that name. Of "localhost",
some clients use ::1 and others 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tfs.core.call import ListenerOptions, Peer
from tfs.core.errors import InvalidArgument, Unavailable
from tfs.frontends.rpc.express.tls_contexts import TlsContexts
from tfs.frontends.rpc.unix_socket import UNIX, bind_unix, remedy

_BACKLOG = 1024
_ANY_IPV4: Final = "0.0.0.0"
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of binding to an address that this machine does not have."""


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
                self.tls = TlsContexts(options.tls)
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
                self.sockets, self.address = _bind_tcp(options.address)
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
        client, raw = listening.accept()
        client.setblocking(False)
        if self._unix_path:
            # Only processes on this machine can open the path.
            return client, Peer(self.address, self.options.name, is_loopback=True)
        with contextlib.suppress(OSError):  # the path may be gone already
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client, Peer(_text(raw), self.options.name, _is_loopback(raw[0]))

    def close(self) -> None:
        """Stops listening; removes a Unix socket's path if it is still ours."""
        if self.sockets[0].fileno() < 0:
            return
        if self._unix_path:
            # This comes first: a path on which nobody listens may be another server's
            # soon.
            with contextlib.suppress(OSError):
                os.unlink(self._unix_path)
        _close(self.sockets)


def _bind_tcp(address: str) -> tuple[list[socket.socket], str]:
    """Returns the sockets, and the address with the real port."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise ValueError(f"not an address (host:port or unix:/path): {address!r}")
    if host == _ANY_IPV4:
        # These mean any address of either family, as in grpc and so in TensorFlow
        # Serving: on many hosts "localhost" is ::1 first.
        try:
            listening = _listening(socket.AF_INET6, ("::", int(port)))
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
        else:
            return [listening], f"{host}:{listening.getsockname()[1]}"
    found = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listening_all = _bind_each(
        list(dict.fromkeys((family, where) for family, _, _, _, where in found))
    )
    name = listening_all[0].getsockname()
    if len(listening_all) == 1:
        return listening_all, _text(name)
    return listening_all, f"{host}:{name[1]}"


def _bind_each(
    places: Sequence[tuple[int, tuple[Any, ...]]],
) -> list[socket.socket]:
    """Listens on every address of a name, on one port.

    Addresses that this machine does not have (its hosts file may name ::1 while IPv6 is
    off) are left out, if there is another.
    """
    opened: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, where in places:
            if opened:  # port 0 becomes the same free port for all
                where = (where[0], opened[0].getsockname()[1], *where[2:])
            try:
                opened.append(_listening(family, where, is_alone=len(places) == 1))
            except OSError as error:
                if error.errno not in _NO_IPV6:
                    raise
                missing = error
        if missing is not None and not opened:
            raise missing
    except BaseException:
        _close(opened)
        raise
    return opened


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def _listening(
    family: int, where: tuple[Any, ...], *, is_alone: bool = True
) -> socket.socket:
    """Returns a listening socket; if it is alone, one of IPv6 takes IPv4 clients too."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_alone)
        listening.bind(where)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _text(where: tuple[Any, ...]) -> str:
    host, port = where[0], where[1]
    if host.startswith("::ffff:") and "." in host:  # an IPv4 client of an IPv6 socket
        return f"{host.removeprefix('::ffff:')}:{port}"
    if ":" in host:
        return f"[{host}]:{port}"
    return f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
