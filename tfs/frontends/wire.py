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
from collections import deque
from typing import Final

from tfs.frontends.http2.outbox import Output
from tfs.frontends.tls.tls_stream import TlsFault, TlsStream

_KERNEL_BYTES: Final = 524_288  # kept by the kernel without being sent
_JOINED_BYTES: Final = 32_768  # joined before they are sent, which takes 3 us
_MAX_BUFFERS: Final = 512  # per sendmsg; the kernel takes 1,024


class Wire:
    """A socket in plain text. Confined to the serving loop.

    Attributes:
        socket: The socket, non-blocking.
        unsent_bytes: Bytes that the kernel has not taken yet.
        sent_bytes: Bytes that it took late, of those.

    """

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
        try:
            many = len(out) > 1
            num_sent = self.socket.sendmsg(out) if many else self.socket.send(out[0])
        except BlockingIOError:
            num_sent = 0
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
            try:
                num_sent = self.socket.sendmsg(batch)
            except BlockingIOError:
                return
            self.sent_bytes += num_sent
            self._drop_sent(num_sent)
            if num_sent < sum(map(len, batch)):
                return

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
    """A socket over TLS, after the handshake. What is left to be sent is ciphertext.

    Args:
        tls: Its encryption; may hold bytes that the client sent after the handshake.
        unsent: The rest of the handshake that is still to be sent.

    """

    __slots__ = ("_has_ended", "_is_begun", "_tls")

    def __init__(self, client: socket.socket, tls: TlsStream, unsent: bytes) -> None:
        super().__init__(client)
        self._tls: TlsStream | None = tls
        self._is_begun = False
        self._has_ended = False
        if unsent:
            self._queue([unsent])

    def read(self, num_bytes: int) -> bytes:
        """As in plain text; the first read returns what came with the handshake."""
        tls = self._tls
        if tls is None or self._has_ended:
            raise EOFError
        data = b""
        if self._is_begun:
            data = super().read(num_bytes)
        self._is_begun = True
        try:
            plain, self._has_ended = tls.decrypt(data)
        except TlsFault as fault:
            self._send_own()  # the alert
            raise EOFError from fault
        self._send_own()
        if plain:
            return plain
        if self._has_ended:
            raise EOFError
        raise BlockingIOError

    def send(self, out: Output) -> None:
        """As in plain text."""
        assert self._tls is not None
        data = b"".join(out)
        out.clear()
        try:
            parts = self._tls.encrypt(data)
        except TlsFault as fault:
            raise ConnectionError(str(fault)) from fault
        self._queue(list(parts))
        self.send_unsent()

    def end(self) -> None:
        """Sends TLS's closing alert, if the socket has room, and forgets the rest."""
        tls, self._tls = self._tls, None  # 20 KB
        if tls is not None and not self.unsent_bytes:
            with contextlib.suppress(OSError):
                self.socket.send(tls.end())
        super().end()

    def _send_own(self) -> None:
        """Sends TLS's own output: the answer to a key update, or an alert."""
        assert self._tls is not None
        output = self._tls.take_output()
        if output:
            self._queue([output])
            with contextlib.suppress(OSError):
                self.send_unsent()
