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
import stat
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tfs.core.call import ListenerOptions, Peer
from tfs.core.errors import InvalidArgument, Unavailable
from tfs.frontends.tls_context import TlsContexts


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
                f"{error.strerror or error}; free it, or choose another address"
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


# Connections that wait to be accepted; the system allows no more than net.core.somaxconn,
# mostly 4,096. With 1,024 a wave of ten thousand cut off a third of itself, and a client
# beside it whose first packet was dropped came back after one second, or after three.
_BACKLOG: Final = 4096
_ANY_IPV4: Final = "0.0.0.0"
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of binding to an address that this machine does not have."""


def bind_tcp(address: str) -> tuple[list[socket.socket], str]:
    """Returns sockets that listen, non-blocking, and the address with the real port.

    Raises:
        OSError: The address is in use, unknown or not ours; nothing is open.
        ValueError: The address cannot be parsed.

    """
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


def accept_tcp(listening: socket.socket) -> tuple[socket.socket, str, bool]:
    """Returns a new connection's socket, non-blocking; its peer; whether that is loopback.

    Raises:
        OSError: As ``accept``; BlockingIOError if no connection waits.

    """
    client, raw = listening.accept()
    client.setblocking(False)
    with contextlib.suppress(OSError):  # the client may be gone already
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, _text(raw), _is_loopback(raw[0])


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


UNIX: Final = "unix:"
"""What the addresses of Unix sockets begin with."""

_UNIX_BACKLOG = 1024


def bind_unix(path: str, mode: int) -> socket.socket:
    """Returns a socket that listens at a path, non-blocking.

    A socket file on which nobody listens is replaced.

    Args:
        path: Absolute.
        mode: The permissions of the socket.

    Raises:
        OSError: Another server listens there, or it cannot be made there.
        ValueError: The path is not absolute.

    """
    if not os.path.isabs(path):
        raise ValueError(f"the path of a Unix socket must be absolute: {path!r}")
    listening = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        # Permissions are set before bind, so that the path never exists with wider
        # ones, and again afterwards, because bind applies the umask.
        os.fchmod(listening.fileno(), mode)
        listening.bind(path)
        os.chmod(path, mode)
        listening.listen(_UNIX_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _remove_stale(path: str) -> None:
    """Removes a socket nobody listens on; anything else is left for bind to refuse."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            return
