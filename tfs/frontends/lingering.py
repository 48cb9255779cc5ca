"""Sockets of clients that may still be reading what they were told last.

If a socket is closed while its client still sends (it acknowledges what it reads), the
kernel resets the connection, and what was not read yet is lost: a GOAWAY with the reason,
or the end of an answer. So only the sending direction is closed at first, and whatever
still arrives is read and dropped. The socket is closed once the client has closed it, or
its system has taken everything, or makes no progress.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import termios
from collections.abc import Callable
from functools import partial
from typing import Final

from tfs.core.loop.serving_loop import HANG_UP, ServingLoop
from tfs.frontends.budget import Progress

_LOOK_S: Final = 1.0
_READ_BYTES: Final = 65_536


class LingeringSockets:
    """The sockets of such connections. Confined to the serving loop.

    Args:
        loop: The loop.
        no_progress_timeout_s: How long a client may take nothing.
        on_gone: Told of each that was closed.

    """

    def __init__(
        self,
        loop: ServingLoop,
        no_progress_timeout_s: float,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._timeout_s = no_progress_timeout_s
        self._on_gone = on_gone
        self._sockets: set[socket.socket] = set()

    def __len__(self) -> int:
        return len(self._sockets)

    def take(self, client: socket.socket) -> None:
        """Takes over an unwatched socket, and closes it in time."""
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:  # the connection is gone already
            client.close()
            return
        self._sockets.add(client)
        self._loop.watch(client.fileno(), partial(self._on_ready, client))
        now_s = self._loop.clock.now()
        num_left = _num_untaken(client)
        look = partial(self._look, client, num_left, Progress(0, now_s))
        self._loop.call_at(now_s + _LOOK_S, look)

    def close(self) -> None:
        """Closes them all."""
        for client in list(self._sockets):
            self._let_go(client)

    def _on_ready(self, client: socket.socket, events: int) -> None:
        try:
            num_bytes = 0 if events & HANG_UP else len(client.recv(_READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            num_bytes = 0
        if not num_bytes:
            self._let_go(client)

    def _look(self, client: socket.socket, num_first: int, progress: Progress) -> None:
        if client not in self._sockets:
            return
        now_s = self._loop.clock.now()
        num_left = _num_untaken(client)
        stalled_s = progress.move(num_first - num_left, now_s)
        if not num_left or stalled_s > self._timeout_s:
            self._let_go(client)
        else:
            look = partial(self._look, client, num_first, progress)
            self._loop.call_at(now_s + _LOOK_S, look)

    def _let_go(self, client: socket.socket) -> None:
        if client in self._sockets:
            self._sockets.remove(client)
            self._loop.unwatch(client.fileno())
            client.close()
            self._on_gone()


def _num_untaken(connection: socket.socket) -> int:
    """Returns how much of what was sent the other side has not read, about."""
    queued = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return queued[0]
