"""Writes one socket's output once per round, and the rest when the kernel takes it.

Ordinary answers take one system call per round. What the kernel does not take waits in
``_unsent``. While too much waits there, the socket is not watched for reading, so a
client that takes no answers gets no more work done. A long answer is not too much:
other requests are answered while it is taken.

A short answer has to wait for what was handed to the kernel before. So before the first
answer that may be long, a socket is told to keep no more than half a megabyte that cannot
be sent yet. Otherwise it would take four, which a client behind 100 Mbit/s reads for
0.3 s, and whether the client reads at all would show as late.
"""

from __future__ import annotations

import abc
import contextlib
import socket
from collections import deque
from typing import Final

from tfs.core.serving_loop import READABLE, WRITABLE
from tfs.frontends.rpc.express.http2.connection import Connection
from tfs.frontends.rpc.express.shared_state import SharedState

_FILL_BYTES: Final = 262_144  # bytes of queued answers per system call
_KERNEL_BYTES: Final = 524_288  # kept by the kernel without being sent
_FEW_ANSWERS: Final = 64  # however long, they are no reason to read no requests
_MAX_BUFFERS: Final = 512  # per sendmsg; the kernel takes 1,024
_STALE: Final = -1  # as the number of bytes noted last: as many never wait


class SocketOutput(abc.ABC):
    """Sends the output of one socket. Confined to the serving loop.

    The base of :class:`~tfs.frontends.rpc.express.session.Session`, which reads.

    Attributes:
        connection: The protocol's state; created by the derived class.
        is_dirty: Whether it waits for the transport to call :meth:`flush`.
        is_closed: Whether the socket is gone.

    """

    __slots__ = (
        "_is_limited",
        "_noted_bytes",
        "_now",
        "_options",
        "_shared",
        "_socket",
        "_unsent",
        "_unsent_bytes",
        "_watched",
        "_written_s",
        "connection",
        "is_closed",
        "is_dirty",
    )

    connection: Connection

    def __init__(self, shared: SharedState, client: socket.socket) -> None:
        self.is_dirty = False
        self.is_closed = False
        self._shared = shared
        self._options = shared.options
        self._socket = client
        self._now = shared.loop.clock.now
        self._watched = READABLE
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_limited = False  # whether the kernel keeps little for it
        self._noted_bytes = 0  # bytes noted in the backlog
        self._written_s = self._now()

    @abc.abstractmethod
    def on_ready(self, events: int) -> None:
        """Reads and writes what is possible; contains every exception."""

    @abc.abstractmethod
    def on_failure(self, error: Exception) -> None:
        """Closes this connection, and no other, because our own code raised."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the socket and cuts off every call; idempotent."""

    @abc.abstractmethod
    def refill(self) -> None:
        """Grants the client as much as the receive budget has room for."""

    @abc.abstractmethod
    def cut_off_reader(self) -> None:
        """Ends the connection, because too many answers wait for slow readers."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the kernel has not taken yet."""
        return self._unsent_bytes + self.connection.queued_bytes

    def mark_dirty(self) -> None:
        """Requests that :meth:`flush` is called at the end of the round."""
        if not self.is_dirty:
            self.is_dirty = True
            self._shared.dirty.append(self.flush)

    def flush(self) -> None:
        """Writes what the round brought; contains every exception."""
        self.is_dirty = False
        if self.is_closed:
            return
        try:
            self._write()
            waiting_bytes = self._unsent_bytes + self.connection.queued_bytes
            if waiting_bytes != self._noted_bytes and not self.is_closed:
                self._note(waiting_bytes)
        except Exception as error:
            self.on_failure(error)

    def note_soon(self) -> None:
        """Has the next :meth:`flush` note what waits, if answers were queued meanwhile.

        It may write all of them. Then just as much waits as was noted before, but
        somebody waits to hear that they are gone.
        """
        if self.unread_bytes != self._noted_bytes:
            self._noted_bytes = _STALE

    def _note(self, waiting_bytes: int) -> None:
        """Notes how many bytes wait for the client now."""
        shared, connection = self._shared, self.connection
        self._noted_bytes = waiting_bytes
        resident_bytes = self._unsent_bytes + connection.resident_bytes
        shared.backlog.note(self, waiting_bytes, self._now(), resident_bytes)
        is_choked = waiting_bytes > shared.headroom.open_to_reader_bytes
        if is_choked != connection.is_choked:
            connection.is_choked = is_choked
            if not is_choked:
                shared.loop.post(self.refill)

    def _write(self) -> None:
        connection = self.connection
        if self._unsent:
            self._queue_output()  # continued when the socket is ready
            self._watch()
            return
        num_left = self._shared.turns.current.num_written_bytes
        has_sendable = bool(connection.blocked) and connection.has_sendable
        while num_left > 0:
            if has_sendable:
                self._fill(min(num_left, _FILL_BYTES))
                has_sendable = connection.has_sendable
            num_left -= _FILL_BYTES
            out = connection.out
            if not out:
                break
            if connection.has_large_output:
                self._send_large()
            else:
                data = b"".join(out) if len(out) > 1 else bytes(out[0])
                out.clear()
                try:
                    sent = self._socket.send(data)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    self.close()
                    return
                if sent < len(data):
                    self._unsent.append(memoryview(data)[sent:])
                    self._unsent_bytes += len(data) - sent
                    self._written_s = self._now()
                    self._watch()
            if self.is_closed or self._unsent or not has_sendable:
                break
        if self.is_closed or self._unsent:
            return
        if has_sendable:
            self._shared.wants_round = True
            self.is_dirty = True
            self._shared.late.append(self.flush)
        elif connection.is_closed or (
            connection.is_draining and connection.is_drained and not connection.out
        ):
            self.close()

    def _fill(self, max_bytes: int) -> None:
        """Takes that much of the answers that wait, for a socket that keeps little."""
        if not self._is_limited:
            self._is_limited = True
            with contextlib.suppress(OSError):  # a Unix socket has no such option
                self._socket.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_BYTES
                )
        self.connection.fill(max_bytes)

    def _send_large(self) -> None:
        """Writes large parts without copying them."""
        connection = self.connection
        out = connection.out
        if len(out) > _MAX_BUFFERS:
            self._queue_output()
            self._send_unsent()
            return
        try:
            sent = self._socket.sendmsg(out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < sum(map(len, out)):
            num_sent = 0
            while sent >= len(out[num_sent]):
                sent -= len(out[num_sent])
                num_sent += 1
            del out[:num_sent]
            out[0] = memoryview(out[0])[sent:]
            self._queue_output()
            self._watch()
        else:
            out.clear()
            connection.has_large_output = False

    def _queue_output(self) -> None:
        connection = self.connection
        if not self._unsent:
            self._written_s = self._now()
        for part in connection.out:
            self._unsent.append(memoryview(part))
            self._unsent_bytes += len(part)
        connection.out.clear()
        connection.has_large_output = False

    def _send_unsent(self) -> None:
        unsent = self._unsent
        while unsent:
            batch = [unsent[index] for index in range(min(len(unsent), _MAX_BUFFERS))]
            try:
                sent = self._socket.sendmsg(batch)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                return
            self._unsent_bytes -= sent
            self._written_s = self._now()
            for part in batch:
                if sent < len(part):
                    unsent[0] = part[sent:]
                    break
                sent -= len(part)
                unsent.popleft()
            else:
                continue
            break  # a part is left, so the kernel's buffer is full
        self._watch()

    @property
    def _may_read(self) -> bool:
        """Whether requests are read although answers wait: few, or not many bytes."""
        most_bytes = self._options.max_unsent_bytes
        return self._unsent_bytes <= most_bytes and (
            len(self.connection.blocked) <= _FEW_ANSWERS
            or self.unread_bytes <= most_bytes
        )

    def _watch(self) -> None:
        """Watches the socket for reading, unless too much waits, and for writing."""
        if not self._unsent:
            events = READABLE
        elif self._may_read:
            events = READABLE | WRITABLE
        else:
            events = WRITABLE
        if events != self._watched:
            self._watched = events
            self._shared.loop.watch(self._socket.fileno(), self.on_ready, events)
