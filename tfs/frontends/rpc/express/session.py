"""One accepted socket: bytes in, bytes out, and its place among the others.

Reading is bounded per round; sending is done by the base class. The calls in between are
``session_calls``; what the session gets while memory is short is ``client_uploads`` for
its requests and ``waiting_requests`` for its answers.

Any exception on the way, from a socket or from our own code, closes this connection
and no other.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from math import inf

from tfs.core.call import MethodTable, Peer
from tfs.core.serving_loop import HANG_UP, READABLE, WRITABLE
from tfs.frontends.rpc.express.client_uploads import ClientUploads
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.session_calls import SessionCalls
from tfs.frontends.rpc.express.shared_state import SharedState
from tfs.frontends.rpc.express.silence import Silence
from tfs.frontends.rpc.express.socket_output import SocketOutput
from tfs.frontends.rpc.express.turns import BUSY_S, is_busy
from tfs.frontends.rpc.frames import ConnectionFault, ErrorCode

log = logging.getLogger(__name__)


class Session(SocketOutput):
    """A client's connection on its socket. Confined to the serving loop.

    Invariant: while it is open, the loop watches its socket. Once it is closed, nothing
    of the transport refers to it but calls whose handlers still work, and no cycle keeps
    it alive.

    Attributes:
        peer: The client.
        opened_s: When it was accepted.
        uploads: The client's uploads, as the receive budget sees them.

    """

    __slots__ = (
        "_busy_s",
        "_calls",
        "_has_more",
        "_has_waited",
        "_on_closed",
        "_silence",
        "opened_s",
        "peer",
        "uploads",
    )

    def __init__(
        self,
        shared: SharedState,
        client: socket.socket,
        peer: Peer,
        methods: MethodTable,
        on_closed: Callable[[Session], None],
    ) -> None:
        super().__init__(shared, client)
        now_s = self._now()
        self._on_closed = on_closed
        self.peer = peer
        self.opened_s = now_s
        self._calls = SessionCalls(shared, self, peer, methods, now_s)
        self.connection = self._calls.connection
        self.uploads = ClientUploads(
            self.connection, shared.starved, shared.counters, self._now, self.mark_dirty
        )
        self._silence = Silence(shared, now_s)
        self._busy_s = -inf
        self._has_more = False
        self._has_waited = False  # whether others have had a turn since then
        shared.loop.watch(client.fileno(), self.on_ready)

    def __repr__(self) -> str:
        return f"<Session {self.peer.address} on {self.peer.listener}>"

    # -- the loop's callbacks --------------------------------------------------------

    def on_ready(self, events: int) -> None:
        """Reads and writes what is possible; contains every exception."""
        try:
            if events & HANG_UP:
                # Both directions are closed, so nobody waits for an answer.
                self.close()
                return
            if events & WRITABLE and self._unsent:
                self._send_unsent()
                self.mark_dirty()
            if events & READABLE and not self._has_more and not self.is_closed:
                self._read()
        except Exception as error:
            self.on_failure(error)

    def go_on(self) -> None:
        """Takes the requests that the last round had no room for.

        Other connections go first, but for no more than one round.
        """
        shared = self._shared
        turns = shared.turns
        if turns.are_short and turns.last is not self and not self._has_waited:
            self._has_waited = True
            shared.unfinished.append(self.go_on)
            return
        self._has_more = self._has_waited = False
        try:
            self._receive(b"")
        except Exception as error:
            self.on_failure(error)

    def _read(self) -> None:
        turns = self._shared.turns
        num_bytes = turns.current.num_read_bytes
        if self.connection.frame_bytes and not turns.are_short:
            num_bytes = self.connection.fitting_bytes(num_bytes)
        try:
            data = self._socket.recv(num_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The client has closed the connection, or its sending direction only.
            # Requests end with END_STREAM, so that also means giving up, as it does to
            # grpc's own servers.
            self.close()
            return
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        now_s = self.uploads.read_s = self._now()
        connection = self.connection
        shared = self._shared
        if shared.round_begun_s is None:
            shared.round_begun_s = now_s
        turns = shared.turns
        turn = turns.current
        connection.max_requests = turn.num_requests
        connection.max_large = turn.num_large_requests
        has_more = connection.receive(data, now_s)
        if has_more:
            self._has_more = True
            shared.unfinished.append(self.go_on)
        num_begun = connection.num_begun
        if is_busy(num_begun, len(data), has_more):
            self._busy_s = now_s
            turns.last = self
        elif num_begun and turns.last is not self:
            if turns.last is not None and now_s - self._busy_s > BUSY_S:
                turns.share(now_s)
            turns.last = self
        if not self.is_dirty and (
            connection.out or connection.blocked or connection.is_closed
        ):
            self.mark_dirty()
        if connection.is_starved:
            self.uploads.starve()

    def _note(self, waiting_bytes: int) -> None:
        super()._note(waiting_bytes)
        if self._calls.are_paused:
            self._shared.loop.post(self._go_on_with_streams)

    def _go_on_with_streams(self) -> None:
        if not self.is_closed:
            try:
                self._calls.go_on()
            except Exception as error:
                self.on_failure(error)

    def refill(self) -> None:
        """Grants the client what the receive budget had no room for until now."""
        self.uploads.refill()

    def sweep(self, now_s: float) -> None:
        """Closes, resets or pings what has been silent for too long."""
        self._silence.sweep(
            self,
            now_s,
            self.uploads.read_s,
            self._written_s if self._unsent else None,
            has_more=self._has_more,
        )
        self.tell_streams()

    def tell_streams(self) -> None:
        """Tells the client how many streams it may have, if that has changed."""
        if not self.is_closed and self.connection.tell_streams():
            self.mark_dirty()

    def cut_off_reader(self) -> None:
        """Ends the connection, because too many answers wait for slow readers."""
        self._shared.counters.timeouts += 1
        log.warning(
            "event=slow_reader peer=%s waiting_bytes=%d note=%r",
            self.peer.address,
            self.unread_bytes,
            "closed: clients that take no answers have more waiting than there is room "
            "for",
        )
        self.connection.terminate(
            ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "answers are taken too slowly")
        )
        self.flush()  # sends the GOAWAY, if the socket takes it
        self.close()

    def on_reset(self, stream: Stream) -> None:
        """Notes that a stream is gone without an answer."""
        self._calls.on_reset(stream)

    # -- the end -----------------------------------------------------------------------

    def on_failure(self, error: Exception) -> None:
        """Closes this connection, and no other, because our own code raised."""
        self._shared.counters.failures += 1
        log.error("event=connection_failed peer=%s", self.peer.address, exc_info=error)
        self.close()

    def close(self) -> None:
        """Closes the socket and cuts off every call; idempotent.

        If the client may still be reading what it was told last, the socket lingers.
        """
        if self.is_closed:
            return
        self.is_closed = True
        shared = self._shared
        counters, connection = shared.counters, self.connection
        was_told = not self._unsent  # whether the socket took everything
        has_answers = connection.is_drained and not connection.out
        try:
            shared.loop.unwatch(self._socket.fileno())
            self.uploads.close()
            shared.backlog.note(self, 0, self._now())
            shared.turns.forget(self)
            self._unsent.clear()
            counters.answered += connection.num_answered
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
            self._calls.close()
            connection.out.clear()
        finally:
            del self._calls  # the calls refer to this session; no cycle may be left
            if was_told and connection.fault is not None:
                shared.lingering.take(self._socket)
            elif was_told and has_answers:
                shared.lingering.take(self._socket, has_answers=True)
            else:
                self._socket.close()
            self._on_closed(self)
