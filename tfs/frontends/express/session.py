"""One accepted client: its bytes in and out, and its place among the others.

Reading and writing are bounded per round. What is read goes to the connection, and what
comes of it to the calls.

Any exception on the way, from a socket or from our own code, closes this connection
and no other.
"""

from __future__ import annotations

import logging
from typing import Final

from tfs.core.call import MethodTable, Peer
from tfs.core.loop.serving_loop import HANG_UP, READABLE, WRITABLE
from tfs.frontends.express.session_calls import SessionCalls
from tfs.frontends.express.shared_state import SharedState
from tfs.frontends.express.timeouts import Timeouts
from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.stream import Stream
from tfs.frontends.wire import Wire

log = logging.getLogger(__name__)

_FILL_BYTES: Final = 262_144  # bytes of queued answers per system call
_LONG_ROUND_S: Final = 0.02
_FEW_ANSWERS: Final = 64  # however long, they are no reason to read no requests


class Session:
    """A client's connection on its socket. Confined to the serving loop.

    Invariant: while it is open, the loop watches its socket. Once it is closed, nothing
    of the transport refers to it but calls whose handlers still work, and no cycle keeps
    it alive.

    Attributes:
        connection: The protocol's state.
        wire: The socket.
        peer: The client.
        opened_s: When it was accepted.
        read_s: When bytes of the client were last read.
        unread_bytes: Bytes of answers that the kernel has not taken yet, as the budget
            counts them.
        is_dirty: Whether it waits for the transport to call :meth:`flush`.
        is_closed: Whether the socket is gone.

    """

    __slots__ = (
        "_calls",
        "_has_more",
        "_shared",
        "_timeouts",
        "_watched",
        "connection",
        "is_closed",
        "is_dirty",
        "opened_s",
        "peer",
        "read_s",
        "unread_bytes",
        "wire",
    )

    def __init__(
        self,
        shared: SharedState,
        wire: Wire,
        peer: Peer,
        methods: MethodTable,
    ) -> None:
        now_s = shared.loop.clock.now()
        self._shared = shared
        self.wire = wire
        self.peer = peer
        self.opened_s = self.read_s = now_s
        self.unread_bytes = 0
        self.is_dirty = False
        self.is_closed = False
        self._calls = SessionCalls(shared, self, peer, methods, now_s)
        self.connection = self._calls.connection
        self._timeouts = Timeouts(shared, now_s)
        self._has_more = False
        self._watched = READABLE
        shared.loop.watch(wire.socket.fileno(), self.on_ready)

    def __repr__(self) -> str:
        return f"<Session {self.peer.address} on {self.peer.listener}>"

    # -- the loop's callbacks --------------------------------------------------------

    def begin(self) -> None:
        """Takes what the wire has already; contains every exception."""
        self.on_ready(READABLE)
        if not self.is_closed:
            self._watch()

    def on_ready(self, events: int) -> None:
        """Reads and writes what is possible; contains every exception."""
        try:
            if events & HANG_UP:
                # Both directions are closed, so nobody waits for an answer.
                self.close()
                return
            if events & WRITABLE and self.wire.unsent_bytes:
                self.wire.send_unsent()
                self.mark_dirty()
            if events & READABLE and not self._has_more:
                self._read()
        except BlockingIOError:
            if self.wire.unsent_bytes:  # TLS has something of its own to send
                self.mark_dirty()
        except (EOFError, OSError):
            # The client has closed the connection, or its sending direction only.
            # Requests end with END_STREAM, so that also means giving up, as it does to
            # grpc's own servers.
            self.close()
        except Exception as error:
            self.on_failure(error)

    def go_on(self) -> None:
        """Takes the requests that the last round had no room for."""
        self._has_more = False
        try:
            self._receive(b"", self._shared.loop.clock.now())
        except Exception as error:
            self.on_failure(error)

    def _read_later(self) -> None:
        self._has_more = False
        if not self.is_closed:
            self.on_ready(READABLE)

    def _read(self) -> None:
        shared = self._shared
        now_s = shared.loop.clock.now()
        if shared.round_begun_s is None:
            shared.round_begun_s = now_s
        elif now_s - shared.round_begun_s > _LONG_ROUND_S:
            # A crowd that sends at once is read in several rounds, in turn.
            self._has_more = True
            shared.unfinished.append(self._read_later)
            return
        self._receive(self.wire.read(shared.options.max_read_bytes), now_s)

    def _receive(self, data: bytes, now_s: float) -> None:
        shared, connection = self._shared, self.connection
        self.read_s = now_s
        if connection.receive(data, now_s):
            self._has_more = True
            shared.unfinished.append(self.go_on)
        sender = connection.sender
        if not self.is_dirty and (sender.out or sender.blocked or connection.is_closed):
            self.mark_dirty()

    @property
    def num_calls(self) -> int:
        """How many of its calls are under way."""
        return len(self.connection.streams)

    def begin_drain(self) -> None:
        """Tells the client that no new calls are wanted."""
        self.connection.begin_drain()
        self.mark_dirty()

    def sweep(self, now_s: float) -> None:
        """Closes, resets or pings what has been silent for too long."""
        self._timeouts.sweep(self, now_s, has_more=self._has_more)

    def on_reset(self, stream: Stream) -> None:
        """Notes that a stream is gone without an answer."""
        self._calls.on_reset(stream)

    # -- output ------------------------------------------------------------------------

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
        except OSError:
            self.close()
        except Exception as error:
            self.on_failure(error)

    def note_unread(self) -> None:
        """Counts the answers that the kernel has not taken yet."""
        unread_bytes = self.wire.unsent_bytes + self.connection.sender.queued_bytes
        more_bytes = unread_bytes - self.unread_bytes
        if more_bytes and not self.is_closed:
            self.unread_bytes = unread_bytes
            self._shared.budget.release(-more_bytes)
            if more_bytes < 0 and self._calls.are_paused:
                self._shared.loop.post(self._go_on_with_streams)

    def _go_on_with_streams(self) -> None:
        if not self.is_closed:
            try:
                self._calls.go_on()
            except Exception as error:
                self.on_failure(error)

    def _write(self) -> None:
        shared, connection, wire = self._shared, self.connection, self.wire
        sender, out = connection.sender, connection.sender.out
        left_bytes = shared.options.max_written_bytes
        if wire.unsent_bytes and out:
            wire.send(out, is_large=True)  # behind the rest
        has_sendable = bool(sender.blocked) and sender.has_sendable
        while left_bytes > 0 and not wire.unsent_bytes:
            if has_sendable:
                wire.expect_long_answers()
                sender.fill(min(left_bytes, _FILL_BYTES))
                has_sendable = sender.has_sendable
            left_bytes -= _FILL_BYTES
            if not out:
                break
            is_large, sender.has_large_output = sender.has_large_output, False
            wire.send(out, is_large=is_large)
            if not has_sendable:
                break
        if wire.unsent_bytes:
            self._watch()
        elif has_sendable:
            shared.wants_round = True
            self.is_dirty = True
            shared.late.append(self.flush)
        elif connection.is_closed or (connection.is_draining and connection.is_drained):
            self.close()
            return
        elif self._watched != READABLE:
            self._watch()
        if self.unread_bytes or sender.queued_bytes or wire.unsent_bytes:
            self.note_unread()

    def _watch(self) -> None:
        """Watches the socket for reading, unless too much waits, and for writing."""
        wire = self.wire
        if not wire.unsent_bytes:
            events = READABLE
        elif (
            wire.unsent_bytes <= self._shared.options.max_unsent_bytes
            and len(self.connection.sender.blocked) <= _FEW_ANSWERS
        ):
            events = READABLE | WRITABLE
        else:
            events = WRITABLE
        if events != self._watched:
            self._watched = events
            self._shared.loop.watch(wire.socket.fileno(), self.on_ready, events)

    # -- the end -----------------------------------------------------------------------

    def on_failure(self, error: Exception) -> None:
        """Closes this connection, and no other, because our own code raised."""
        self._shared.clients.counters.failures += 1
        log.error("event=connection_failed peer=%s", self.peer.address, exc_info=error)
        self.close()

    def close(self) -> None:
        """Closes the socket and cuts off every call; idempotent.

        If the client may still be reading what it was told last, the socket lingers.
        """
        if self.is_closed:
            return
        self.is_closed = True
        shared, wire, connection = self._shared, self.wire, self.connection
        counters, sender = shared.clients.counters, connection.sender
        was_told = not wire.unsent_bytes  # whether the socket took everything
        has_answers = connection.is_drained and not sender.out
        try:
            shared.loop.unwatch(wire.socket.fileno())
            counters.answered += sender.num_answered
            counters.resets += connection.num_resets
            counters.decoded_heads += connection.num_decoded_heads
            fault = connection.fault
            if fault is not None:
                counters.faults += 1
                counters.floods += fault.code is ErrorCode.ENHANCE_YOUR_CALM
                log.debug(
                    "event=connection_fault peer=%s code=%s reason=%r",
                    self.peer.address,
                    fault.code.name,
                    fault.reason,
                )
            wire.end()
            self._calls.close()
            sender.out.clear()
        finally:
            shared.budget.release(self.unread_bytes)
            del self._calls  # the calls refer to this session; no cycle may be left
            lingers = was_told and (connection.fault is not None or has_answers)
            shared.clients.let_go(self, wire.socket, lingers=lingers)
