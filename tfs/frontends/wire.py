"""A client's socket: bytes in and out, in plain text or over TLS.

Ordinary answers take one system call per round. What the kernel does not take waits here,
and is sent when it does.

A short answer has to wait for what was handed to the kernel before. So before the first
answer that may be long, a socket is told to keep no more than half a megabyte that cannot
be sent yet. Otherwise it would take four, which a client behind 100 Mbit/s reads for
0.3 s, and whether the client reads at all would show as late.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Final

from tfs.core.tensor_view import Buffer
from tfs.frontends.http2.stream import Output

_KERNEL_BYTES: Final = 524_288  # kept by the kernel without being sent
_JOINED_BYTES: Final = 32_768  # joined before they are sent, which takes 3 us
_RECORD_BYTES: Final = 16_384  # of TLS
_SHORT_BYTES: Final = 8_192  # records of long transfers have more
_MAX_BUFFERS: Final = 512  # per sendmsg; the kernel takes 1,024


class Wire:
    """A socket in plain text. Confined to the serving loop.

    Attributes:
        socket: The socket, non-blocking.
        may_read_into: Whether ``read_into`` may be used: not over TLS, which keeps the
            rest of a record to itself.
        unsent_bytes: Bytes that the kernel has not taken yet.
        sent_bytes: Bytes that it took late, of those.

    """

    may_read_into = True

    __slots__ = ("_is_limited", "_unsent", "sent_bytes", "socket", "unsent_bytes")

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.unsent_bytes = 0
        self.sent_bytes = 0
        self._unsent: deque[memoryview] = deque()
        self._is_limited = False

    def read(self, num_bytes: int) -> bytes:
        """Returns what has arrived.

        Raises:
            BlockingIOError: Nothing has.
            EOFError: The client has closed the connection, or its sending direction.

        """
        try:
            data = self.socket.recv(num_bytes)
        except BlockingIOError:
            raise
        except OSError:
            data = b""
        if not data:
            raise EOFError
        return data

    def read_into(self, memory: memoryview) -> int:
        """Reads what has arrived; returns how many bytes. Raises as ``read``."""
        try:
            num_bytes = self.socket.recv_into(memory)
        except BlockingIOError:
            raise
        except OSError:
            num_bytes = 0
        if not num_bytes:
            raise EOFError
        return num_bytes

    def send(self, out: Output) -> None:
        """Sends frames, which it takes out of the list, and keeps what is left of them.

        Raises:
            OSError: The connection is broken.

        """
        num_bytes = sum(map(len, out))
        if num_bytes <= _JOINED_BYTES and len(out) > 1:
            out[:] = [b"".join(out)]
        if self.unsent_bytes or len(out) > _MAX_BUFFERS:
            self._queue(out)
            self.send_unsent()
            return
        num_sent = self._transmit(out)
        if num_sent == num_bytes:
            out.clear()
            return
        self._queue(out)
        self._drop_sent(num_sent)

    def send_unsent(self) -> None:
        """Sends as much as the kernel takes of what is left.

        Raises:
            OSError: The connection is broken.

        """
        unsent = self._unsent
        while unsent:
            batch = [unsent[index] for index in range(min(len(unsent), _MAX_BUFFERS))]
            num_sent = self._transmit(batch)
            self.sent_bytes += num_sent
            self._drop_sent(num_sent)
            if num_sent < sum(map(len, batch)):
                return

    def _transmit(self, parts: Sequence[Buffer]) -> int:
        """Returns how many bytes of these the kernel has taken."""
        try:
            if len(parts) == 1:
                return self.socket.send(parts[0])
            return self.socket.sendmsg(parts)
        except BlockingIOError:
            return 0

    def expect_long_answers(self) -> None:
        """Has the kernel keep little for this client, from now on."""
        if not self._is_limited:
            self._is_limited = True
            with contextlib.suppress(OSError):  # a Unix socket has no such option
                self.socket.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_BYTES
                )

    def end(self) -> None:
        """Forgets what is left, before the socket is closed; idempotent."""
        self._unsent.clear()
        self.unsent_bytes = 0

    def _queue(self, out: Output) -> None:
        for part in out:
            # Not a view, which would keep the memory of a whole answer.
            self._unsent.append(memoryview(bytes(part)))
            self.unsent_bytes += len(part)
        out.clear()

    def _drop_sent(self, num_bytes: int) -> None:
        unsent = self._unsent
        self.unsent_bytes -= num_bytes
        while num_bytes:
            part = unsent[0]
            if num_bytes < len(part):
                unsent[0] = part[num_bytes:]
                return
            num_bytes -= len(part)
            unsent.popleft()


class TlsWire(Wire):
    """A socket over TLS, after the handshake."""

    may_read_into = False

    __slots__ = ("_tls",)

    def __init__(self, client: ssl.SSLSocket) -> None:
        super().__init__(client)
        self._tls = client

    def read(self, num_bytes: int) -> bytes:
        """As in plain text."""
        parts: list[bytes] = []
        num_left = num_bytes
        try:
            while num_left > 0:
                part = self._tls.recv(_RECORD_BYTES)
                if not part:
                    break
                parts.append(part)
                num_left -= len(part)
                if len(part) < _SHORT_BYTES:
                    break  # mostly the last; to ask for another takes 3 us
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not parts:
                raise BlockingIOError from None
        except OSError:
            pass
        if not parts:
            raise EOFError
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, out: Output) -> None:
        """As in plain text."""
        out[:] = [b"".join(out)]
        super().send(out)

    def _transmit(self, parts: Sequence[Buffer]) -> int:
        num_sent = 0
        # OpenSSL wants the same bytes again after it could not send them: a record's.
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            for part in parts:
                view = memoryview(part)
                for start in range(0, len(view), _RECORD_BYTES):
                    num_sent += self._tls.send(view[start : start + _RECORD_BYTES])
        return num_sent

    def end(self) -> None:
        """Sends TLS's closing alert, if the socket has room, and forgets the rest."""
        if not self.unsent_bytes:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()  # does not wait for the client's own
        super().end()
