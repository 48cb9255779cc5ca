"""One client's connection to a Unix socket, and ours to grpcio behind it.

Bytes are passed on as they come, a part at a time. While the other side does not take
them, no more are read, so a connection holds one part in each direction.
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

from tfs.frontends.rpc.grpcio.sockets import Traffic

_PART_BYTES: Final = 65_536
_MOST_PARTS: Final = 64  # that are passed on at the end; sockets hold some 200 KB


class RelayedConnection:
    """Passes bytes on in both directions. Confined to the loop's thread.

    Begins at once, and owns both sockets. It ends when either side does, after all that
    this side had sent was passed on. So if grpcio takes nothing more, its last answers
    still reach the client.

    Args:
        loop: The running loop.
        client: The client's connection, non-blocking.
        inner: Our connection to grpcio, non-blocking.
        on_end: Called once, when both sockets are closed.

    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        inner: socket.socket,
        on_end: Callable[[], object],
    ) -> None:
        self._client = client
        self._inner = inner
        self._on_end = on_end
        self._acked_bytes = 0
        self._requests = _Flow(loop, client, inner, self.close, self._on_refused)
        self._answers = _Flow(loop, inner, client, self.close, self.close)

    def traffic(self) -> Traffic:
        """Returns what went over the client's connection."""
        requests, answers = self._requests, self._answers
        # What waits in a socket counts more than its bytes, and never less.
        acked_bytes = (
            answers.num_bytes - answers.num_waiting - _num_queued(self._client)
        )
        self._acked_bytes = max(self._acked_bytes, acked_bytes)
        unread_bytes = requests.num_waiting + _num_queued(self._inner)
        return Traffic(requests.num_bytes, self._acked_bytes, unread_bytes)

    def flush(self) -> None:
        """Passes on what grpcio has written, as far as the client takes it at once."""
        self._answers.flush()

    def close(self) -> None:
        """Ends both connections; idempotent."""
        if self._client.fileno() < 0:
            return
        self._requests.stop()
        self._answers.stop()
        self._client.close()
        self._inner.close()
        self._on_end()

    def _on_refused(self) -> None:
        # grpcio has ended the connection. What it wrote before is read up to its end.
        self._requests.stop()


class _Flow:
    """Passes bytes on in one direction.

    Attributes:
        num_bytes: Bytes that were read.

    Args:
        loop: The running loop.
        source: Where the bytes come from.
        target: Where they go.
        on_end: Called when the source has ended, or passing on failed.
        on_refused: Called when the target has ended.

    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        target: socket.socket,
        on_end: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        self.num_bytes = 0
        self._loop = loop
        self._source = source
        self._target = target
        self._on_end = on_end
        self._on_refused = on_refused
        self._is_stopped = False
        self._waiting = memoryview(b"")
        self._loop.add_reader(source, self._read)

    @property
    def num_waiting(self) -> int:
        """Bytes that were read and not yet passed on."""
        return len(self._waiting)

    def flush(self) -> None:
        """Passes on what the source has sent, as far as the target takes it."""
        for _ in range(_MOST_PARTS):
            num_bytes = self.num_bytes
            if self._waiting:
                self._write()
            else:
                self._read()
            if self._waiting or num_bytes == self.num_bytes:
                return

    def stop(self) -> None:
        """Passes nothing on any more."""
        self._is_stopped = True
        # They refer to the connection, which refers to this object.
        self._on_end = self._on_refused = _do_nothing
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._target)
        self._waiting = memoryview(b"")

    def _read(self) -> None:
        try:
            data = self._source.recv(_PART_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_end()
            return
        self.num_bytes += len(data)
        self._waiting = memoryview(data)
        self._send()
        if self._waiting:
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._target, self._write)

    def _write(self) -> None:
        self._send()
        if not self._waiting and not self._is_stopped:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._read)

    def _send(self) -> None:
        try:
            self._waiting = self._waiting[self._target.send(self._waiting) :]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._on_refused()
        except OSError:
            self._on_end()


def _do_nothing() -> None:
    """Stands in for a connection that has ended."""


def _num_queued(connection: socket.socket) -> int:
    """Returns how much of what was sent the other side has not read, about."""
    queued = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return queued[0]
