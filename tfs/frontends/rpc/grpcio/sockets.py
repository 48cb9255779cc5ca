"""Finds the sockets of grpcio's connections, which its interface does not provide."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

RELAYED: Final = "unix-abstract:"
"""What the names of clients of Unix sockets begin with."""

_FILES: Final = "/proc/self/fd"
_MAX_REMEMBERED: Final = 4096
# Offsets in struct tcp_info of linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received.
_COUNTS: Final = struct.Struct("=120xQQ")


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that went over a connection since it was opened. Immutable.

    Attributes:
        received_bytes: Bytes that arrived, whether we have read them or not.
        acked_bytes: Bytes that the client's system has acknowledged.
        unread_bytes: Bytes that arrived and that we have not read yet.

    """

    received_bytes: int
    acked_bytes: int
    unread_bytes: int


class Connections(Protocol):
    """The connections of clients, by their names.

    Attributes:
        num_disconnected: Number of connections that were ended by :meth:`disconnect`.

    """

    num_disconnected: int

    def traffic(self, peer: str) -> Traffic | None:
        """Returns what went over a connection; None if it is not known."""

    def disconnect(self, peer: str) -> bool:
        """Ends a connection; returns False if that is not possible."""


class Relayed(Connections, Protocol):
    """Connections of Unix sockets, which have names of their own."""

    def survey(self) -> dict[str, Traffic]:
        """Returns what went over each connection, by the client's name."""


class Sockets:
    """Finds connections by their clients' names. Confined to grpcio's thread.

    A search takes microseconds for each open file, so the descriptor that was found is
    remembered. Peers have grpcio's names: "ipv4:127.0.0.1:51024",
    "ipv6:%5B::1%5D:51024", and "ipv6:%5Bfe80::1%254%5D:51024" for an address that only
    holds for the interface of that number. Those of Unix sockets are asked of whoever named them.

    Attributes:
        num_disconnected: Number of connections that were shut down here.
        ports: Those on which clients connect to grpcio itself.

    Args:
        relayed: The connections of Unix sockets.

    """

    def __init__(self, relayed: Relayed | None = None) -> None:
        self.num_disconnected = 0
        self.ports: set[int] = set()
        self._relayed = relayed
        self._files: dict[str, int] = {}

    def traffic(self, peer: str) -> Traffic | None:
        """Returns what went over a client's connection; None if there is none."""
        if self._relayed is not None and peer.startswith(RELAYED):
            return self._relayed.traffic(peer)
        with self._connection(peer) as connection:
            if connection is None:
                return None
            with contextlib.suppress(OSError, struct.error):
                counts = connection.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size
                )
                unread = array.array("i", [0])
                fcntl.ioctl(connection.fileno(), termios.FIONREAD, unread)
                acked_bytes, received_bytes = _COUNTS.unpack(counts)
                return Traffic(received_bytes, acked_bytes, unread[0])
        return None

    def disconnect(self, peer: str) -> bool:
        """Shuts down a client's connection; returns whether there was one.

        grpcio then cleans up as if the client had left.
        """
        if self._relayed is not None and peer.startswith(RELAYED):
            is_closed = self._relayed.disconnect(peer)
            self.num_disconnected += is_closed
            return is_closed
        with self._connection(peer) as connection:
            if connection is None:
                return False
            self._files.pop(peer, None)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                self.num_disconnected += 1
                return True
        return False

    def survey(self) -> dict[str, Traffic]:
        """Returns what went over each connection of clients, by their names.

        Takes some microseconds for each open file, and does not look at what waits to
        be read.
        """
        found = {} if self._relayed is None else self._relayed.survey()
        if not self.ports:
            return found
        with contextlib.suppress(OSError):
            for name in os.listdir(_FILES):
                with contextlib.suppress(OSError, struct.error):
                    entry = _look_at(int(name), self.ports)
                    if entry is not None:
                        found[entry[0]] = entry[1]
                        self._remember(entry[0], int(name))
        return found

    @contextlib.contextmanager
    def _connection(self, peer: str) -> Iterator[socket.socket | None]:
        """Yields a socket object for a client's connection; None if there is none."""
        address = _address(peer)
        found = None
        if address is not None:
            known = self._files.pop(peer, None)
            if known is not None:
                found = _copy(known, address)
            if known is None or found is None:
                found = self._search(peer, address)
            else:
                self._files[peer] = known
        if found is None:
            yield None
            return
        with found:
            yield found

    def _search(self, peer: str, address: tuple[str, int]) -> socket.socket | None:
        with contextlib.suppress(OSError, ValueError):
            for name in os.listdir(_FILES):
                found = _copy(int(name), address)
                if found is not None:
                    self._remember(peer, int(name))
                    return found
        return None

    def _remember(self, peer: str, file: int) -> None:
        if len(self._files) >= _MAX_REMEMBERED:
            self._files.clear()
        self._files[peer] = file


def _look_at(file: int, ports: Collection[int]) -> tuple[str, Traffic] | None:
    """Returns a client's name and traffic, if a descriptor is its connection.

    The descriptor may be closed, and opened as another file, at any time. So nothing is
    done with it but to ask.
    """
    connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=file)
    try:
        here = _place(connection.getsockname())
        if here is None or here[1] not in ports:
            return None
        client = _place(connection.getpeername())
        counts = connection.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size
        )
    finally:
        connection.detach()
    if client is None:
        return None
    acked_bytes, received_bytes = _COUNTS.unpack(counts)
    host, port = client[0].replace("%", "%25"), client[1]
    name = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
    return name, Traffic(received_bytes, acked_bytes, 0)


def _address(peer: str) -> tuple[str, int] | None:
    scheme, _, address = peer.partition(":")
    host, _, port = address.replace("%5B", "").replace("%5D", "").rpartition(":")
    if scheme not in {"ipv4", "ipv6"} or not port.isdecimal():
        return None
    host = host.replace("%25", "%").strip("[]")
    return host.removeprefix("::ffff:"), int(port)


def _place(where: object) -> tuple[str, int] | None:
    """Returns an address of the system's in grpcio's words; None if it is no client's.

    Sockets that are not of the internet have other addresses, some of them of numbers.
    """
    if not isinstance(where, tuple) or not isinstance(where[0], str):
        return None
    host = where[0].removeprefix("::ffff:")
    interface = where[3] if len(where) > 3 else 0
    return f"{host}%{interface}" if interface else host, where[1]


def _copy(file: int, address: tuple[str, int]) -> socket.socket | None:
    """Returns a copy of a descriptor if it is a connection from this address."""
    try:
        copy = os.dup(file)  # the descriptor may have been closed and reused meanwhile
    except OSError:
        return None
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    with contextlib.suppress(OSError):
        if address == _place(connection.getpeername()):
            return connection
    connection.close()
    return None
