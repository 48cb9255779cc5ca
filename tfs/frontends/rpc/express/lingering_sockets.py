"""Sockets of clients that broke a rule, kept until they have seen why they were cut off.

If a socket is closed while its client still sends, the kernel resets the connection.
The client's kernel then drops what the client has not read yet, such as the GOAWAY with
the reason. So only the sending direction is closed at first. Whatever still arrives is
read and dropped, for a bounded time.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Final

from tfs.core.serving_loop import HANG_UP, ServingLoop

_LINGER_S: Final = 1.0
_MOST_SOCKETS: Final = 256  # further sockets are closed at once
_READ_BYTES: Final = 65_536
_MOST_BYTES: Final = 4 << 20  # read from one socket; a window is at most 8 MB


class LingeringSockets:
    """The sockets of such connections. Confined to the serving loop."""

    def __init__(self, loop: ServingLoop) -> None:
        self._loop = loop
        self._left_bytes: dict[socket.socket, int] = {}

    def take(self, client: socket.socket) -> None:
        """Takes over an unwatched socket and closes it once its client has closed."""
        if len(self._left_bytes) >= _MOST_SOCKETS:
            client.close()
            return
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:  # the connection is gone already
            client.close()
            return
        self._left_bytes[client] = _MOST_BYTES
        self._loop.watch(client.fileno(), partial(self._on_ready, client))
        end_s = self._loop.clock.now() + _LINGER_S
        self._loop.call_at(end_s, partial(self._let_go, client))

    def close(self) -> None:
        """Closes them all."""
        for client in list(self._left_bytes):
            self._let_go(client)

    def _on_ready(self, client: socket.socket, events: int) -> None:
        try:
            num_bytes = 0 if events & HANG_UP else len(client.recv(_READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            num_bytes = 0
        self._left_bytes[client] -= num_bytes
        if not num_bytes or self._left_bytes[client] <= 0:
            self._let_go(client)

    def _let_go(self, client: socket.socket) -> None:
        if self._left_bytes.pop(client, None) is not None:
            self._loop.unwatch(client.fileno())
            client.close()
