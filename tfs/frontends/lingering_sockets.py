"""Sockets of clients that still read what they were told last.

If a socket is closed while its client still sends, the kernel resets the connection, and
what was not read yet is lost: a GOAWAY with the reason, or the end of an answer. So only
the sending direction is closed at first. Whatever still arrives is read and dropped, for
a bounded time: a second if the client broke a rule. ``tfs.frontends.leaving`` says
how long the others have.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Final

from tfs.core.serving_loop import HANG_UP, ServingLoop
from tfs.frontends.leaving import LOOK_S, Leaving

_LINGER_S: Final = 1.0
_MOST_SOCKETS: Final = 256  # further sockets are closed at once
_READ_BYTES: Final = 65_536
_MOST_BYTES: Final = 4 << 20  # read from one socket; a window is at most 8 MB


class LingeringSockets:
    """The sockets of such connections. Confined to the serving loop.

    Attributes:
        has_room: Whether any number is kept, since no new clients come.

    """

    def __init__(self, loop: ServingLoop) -> None:
        self.has_room = False
        self._loop = loop
        self._left_bytes: dict[socket.socket, int] = {}

    def __len__(self) -> int:
        return len(self._left_bytes)

    def take(self, client: socket.socket, *, has_answers: bool = False) -> None:
        """Takes over an unwatched socket and closes it once its client has closed.

        Args:
            client: The socket.
            has_answers: Whether all calls were answered, and the client may be reading.

        """
        if len(self._left_bytes) >= _MOST_SOCKETS and not self.has_room:
            client.close()
            return
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:  # the connection is gone already
            client.close()
            return
        self._left_bytes[client] = _MOST_BYTES
        self._loop.watch(client.fileno(), partial(self._on_ready, client))
        now_s = self._loop.clock.now()
        if has_answers:
            look = partial(self._look, client, Leaving(client, now_s))
            self._loop.call_at(now_s + LOOK_S, look)
        else:
            self._loop.call_at(now_s + _LINGER_S, partial(self._let_go, client))

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

    def _look(self, client: socket.socket, leaving: Leaving) -> None:
        if client not in self._left_bytes:
            return
        now_s = self._loop.clock.now()
        if leaving.is_over(now_s):
            self._let_go(client)
        else:
            self._loop.call_at(now_s + LOOK_S, partial(self._look, client, leaving))

    def _let_go(self, client: socket.socket) -> None:
        if self._left_bytes.pop(client, None) is not None:
            self._loop.unwatch(client.fileno())
            client.close()
