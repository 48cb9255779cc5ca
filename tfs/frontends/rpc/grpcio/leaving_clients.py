"""Clients with whom grpcio has finished, until they have read what it said to them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from tfs.frontends.rpc.leaving import LOOK_S, Leaving

_READ_BYTES: Final = 65_536
_MOST_BYTES: Final = 4 << 20  # read from one client; a window is at most 8 MB


class LeavingClients:
    """The connections of such clients. Confined to the loop's thread.

    Each is closed when its client has closed; a second after it if the client's system
    has all that was sent; after half a minute whatever it has, and after five seconds in
    which it took nothing.

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
        leaving = Leaving(client, loop.time())
        loop.call_later(LOOK_S, self._look, loop, client, leaving)

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
        self, loop: asyncio.AbstractEventLoop, client: socket.socket, leaving: Leaving
    ) -> None:
        if client not in self._left_bytes:
            return
        if leaving.is_over(loop.time()):
            self._let_go(loop, client)
        else:
            loop.call_later(LOOK_S, self._look, loop, client, leaving)

    def _let_go(self, loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
        del self._left_bytes[client]
        loop.remove_reader(client)
        client.close()
        self._on_gone()
