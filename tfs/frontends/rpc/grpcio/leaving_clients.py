"""Clients with whom grpcio has finished, until they have read what it said to them.

If a connection is closed while its client still sends (it acknowledges what it reads),
the kernel resets it, and what the client's side has not received by then is lost: the end
of an answer. So only the sending direction is closed at first, and whatever still
arrives is read and dropped.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 1.0  # as long as express lingers
_LONGEST_S: Final = 30.0  # as long as a drain takes, by default
_READ_BYTES: Final = 65_536
_MOST_BYTES: Final = 4 << 20  # read from one client; a window is at most 8 MB


def num_queued(connection: socket.socket) -> int:
    """Returns how much of what was sent the other side has not read, about."""
    queued = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return queued[0]


class LeavingClients:
    """The connections of such clients. Confined to the loop's thread.

    Each is closed when its client has closed; a second after it if the client's system
    has all that was sent; after half a minute whatever it has.

    Args:
        on_gone: Called whenever one is closed.

    """

    def __init__(self, on_gone: Callable[[], object]) -> None:
        self._on_gone = on_gone
        self._left_bytes: dict[socket.socket, int] = {}

    def __len__(self) -> int:
        return len(self._left_bytes)

    def take(self, client: socket.socket) -> None:
        """Takes over a connection that nobody watches. On the running loop."""
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:  # the connection is gone already
            client.close()
            return
        self._left_bytes[client] = _MOST_BYTES
        loop = asyncio.get_running_loop()
        loop.add_reader(client, self._read, loop, client)
        until_s = loop.time() + _LONGEST_S
        loop.call_later(_LOOK_S, self._look, loop, client, until_s)

    def close(self) -> None:
        """Closes them all."""
        for client in list(self._left_bytes):
            self._let_go(asyncio.get_running_loop(), client)

    def _read(self, loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
        try:
            num_bytes = len(client.recv(_READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            num_bytes = 0
        self._left_bytes[client] -= num_bytes
        if not num_bytes or self._left_bytes[client] <= 0:
            self._let_go(loop, client)

    def _look(
        self, loop: asyncio.AbstractEventLoop, client: socket.socket, until_s: float
    ) -> None:
        if client not in self._left_bytes:
            return
        if num_queued(client) and loop.time() < until_s:
            loop.call_later(_LOOK_S, self._look, loop, client, until_s)
        else:
            self._let_go(loop, client)

    def _let_go(self, loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
        del self._left_bytes[client]
        loop.remove_reader(client)
        client.close()
        self._on_gone()
