"""One accepted client: its bytes in and out, and its calls from their first bytes on.

What a round takes is read, answered and written first. What is long waits in one line
behind that, and each round does one piece of it: it reads on, hands over a long request,
or writes on. What is read goes to the connection, which tells of requests as they arrive
(a session is its :class:`~tfs.frontends.http2.state.ConnectionEvents`).

Exceptions of handlers are contained by the calls. Any other, from a socket or from our own
code, closes this connection and no other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from tfs.core.call import MethodKind, MethodTable, Peer
from tfs.core.errors import Cancelled, ServingError, Unimplemented
from tfs.core.loop.serving_loop import HANG_UP, READABLE, WRITABLE
from tfs.frontends.budget import LONG_BYTES
from tfs.frontends.express.call import ExpressCall, ExpressStreamCall
from tfs.frontends.express.client_state import ClientState, SharedState
from tfs.frontends.express.timeouts import Timeouts
from tfs.frontends.http2.connection import Connection
from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.request_head import HttpRefusal
from tfs.frontends.http2.stream import Stream
from tfs.frontends.inflation import inflate
from tfs.frontends.wire import Wire

log = logging.getLogger(__name__)

_LONG_ROUND_S: Final = 0.02
_FEW_ANSWERS: Final = 64  # however long, they are no reason to read no requests
_UNARY: Final = MethodKind.UNARY  # a look-up in the enum takes longer


class Session:
    """A client's connection on its socket. Confined to the serving loop.

    Invariant: while it is open, the loop watches its socket. Once it is closed, nothing
    of the transport refers to it, and no cycle keeps it alive.

    Attributes:
        connection: The protocol's state.
        is_closed: Whether the socket is gone.
        wire: The socket.

    Args:
        shared: The state of the transport.
        wire: The socket.
        peer: The client.
        methods: The methods that it may call.

    """

    __slots__ = (
        "_client",
        "_has_more",
        "_inboxes",
        "_methods",
        "_shared",
        "_timeouts",
        "_watched",
        "connection",
        "is_closed",
        "wire",
    )

    def __init__(
        self, shared: SharedState, wire: Wire, peer: Peer, methods: MethodTable
    ) -> None:
        now_s = shared.loop.clock.now()
        self.wire = wire
        self.is_closed = False
        self.connection = Connection(self, shared.budget, shared.options.limits, now_s)
        self._shared = shared
        self._methods = methods
        self._client = ClientState(shared, wire, peer, self.connection, self.flush)
        self._timeouts = Timeouts(self._client, now_s)
        self._inboxes: dict[Stream, Inbox] = {}
        self._has_more = False
        self._watched = READABLE
        shared.loop.watch(wire.socket.fileno(), self.on_ready)

    def __repr__(self) -> str:
        peer = self._client.peer
        return f"<Session {peer.address} on {peer.listener}>"

    # -- input -----------------------------------------------------------------------

    def begin(self) -> None:
        """Takes what the wire has already; contains every exception."""
        self.on_ready(READABLE)
        if not self.is_closed:
            self._watch()

    def on_ready(self, events: int) -> None:
        """Reads and writes what is possible; contains every exception."""
        wire = self.wire
        try:
            if events & HANG_UP:
                # Both directions are closed, so nobody waits for an answer.
                self.close()
                return
            if events & WRITABLE and wire.unsent_bytes:
                wire.send_unsent()
                self._client.mark_dirty()
            if events & READABLE and not self._has_more:
                self._read()
        except BlockingIOError:
            if wire.unsent_bytes:  # TLS has something of its own to send
                self._client.mark_dirty()
        except (EOFError, OSError):
            # The client has closed the connection, or its sending direction only.
            # Requests end with END_STREAM, so that also means giving up, as it does to
            # grpc's own servers.
            self.close()
        except Exception as error:
            self.on_failure(error)

    def _read_on(self) -> None:
        self._has_more = False
        if not self.is_closed:
            self.on_ready(self._watched & READABLE)

    def _take_on(self) -> None:
        """Takes the requests that the last round had no room for."""
        self._has_more = False
        if not self.is_closed:
            try:
                self._receive(b"", self._shared.loop.clock.now())
            except Exception as error:
                self.on_failure(error)

    def _read(self) -> None:
        shared = self._shared
        now_s = shared.loop.clock.now()
        if shared.round_begun_s is None:
            shared.round_begun_s = now_s
        elif now_s - shared.round_begun_s > _LONG_ROUND_S:
            # A crowd that sends at once is read in several rounds: the system tells
            # first of those who waited.
            return
        data = self.wire.read(shared.options.max_piece_bytes)
        self._receive(data, now_s)
        if len(data) >= shared.options.max_piece_bytes and not self._has_more:
            self._has_more = True
            shared.late.append(self._read_on)

    def _receive(self, data: bytes, now_s: float) -> None:
        connection = self.connection
        self._client.read_s = now_s
        if connection.receive(data, now_s):
            self._has_more = True
            self._shared.unfinished.append(self._take_on)
        client, sender = self._client, connection.sender
        if not client.is_dirty and (
            sender.out or sender.blocked or connection.is_closed
        ):
            client.mark_dirty()

    # -- what the connection tells -----------------------------------------------------

    def on_open(self, stream: Stream) -> None:
        head = stream.head
        method = self._methods.get(head.path)
        if head.refusal is not None:
            self._refuse(stream, head.refusal)
            return
        if method is None:
            self._refuse(stream, Unimplemented(f"unknown method {head.path[:200]}"))
            return
        kind = ExpressCall if method.kind is _UNARY else ExpressStreamCall
        call = stream.owner = kind(self._client, stream, method)
        if head.timeout_s is not None:
            call.deadline_s = stream.opened_s + head.timeout_s
            self._shared.opened.append(call)

    def on_request(self, stream: Stream, message: bytes) -> None:
        call: ExpressCall = stream.owner
        call.take_request(message)

    def on_message(
        self, stream: Stream, message: memoryview, is_compressed: bool
    ) -> None:
        call: ExpressCall | None = stream.owner
        if call is None:
            return
        inbox = self._inboxes.get(stream)
        if is_compressed and inbox is None:
            on_empty = partial(self._inboxes.pop, stream, None)
            inbox = self._inboxes[stream] = Inbox(call, self._client, on_empty)
        if inbox is None:
            call.take_message(message)
        else:
            inbox.add(message, is_compressed)

    def on_end(self, stream: Stream) -> None:
        call: ExpressCall | None = stream.owner
        inbox = self._inboxes.get(stream)
        if inbox is not None:
            inbox.add_end()
        elif call is not None:
            call.take_end()

    def on_fault(self, stream: Stream, error: ServingError) -> None:
        call: ExpressCall | None = stream.owner
        if call is not None:
            call.abort(error)

    def on_reset(self, stream: Stream) -> None:
        call: ExpressCall | None = stream.owner
        if call is None:
            self._shared.budget.release_all(stream)
        else:
            call.cut_off(Cancelled("the client cancelled the call"))

    def on_output(self) -> None:
        self._client.mark_dirty()

    def _refuse(self, stream: Stream, refusal: HttpRefusal | ServingError) -> None:
        """Answers a stream before it has a call."""
        if isinstance(refusal, HttpRefusal):
            self.connection.sender.send_refusal(stream, refusal)
        else:
            self.connection.sender.send_error(stream, refusal)
        self._shared.budget.release_all(stream)

    # -- output ------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes what the round brought, or has it wait in line; contains exceptions."""
        sender = self.connection.sender
        if sender.queued_bytes >= LONG_BYTES and sender.has_sendable:
            self._shared.late.append(self._write_on)
        else:
            self._write_on()

    def _write_on(self) -> None:
        self._client.is_dirty = False
        if self.is_closed:
            return
        try:
            self._write()
        except OSError:
            self.close()
        except Exception as error:
            self.on_failure(error)

    def _write(self) -> None:
        shared, connection, wire = self._shared, self.connection, self.wire
        client, sender, out = self._client, connection.sender, connection.sender.out
        if wire.unsent_bytes and out:
            wire.send(out)  # behind the rest
        has_sendable = bool(sender.blocked) and sender.has_sendable
        if not wire.unsent_bytes:
            if has_sendable:
                wire.expect_long_answers()
                sender.fill(shared.options.max_piece_bytes)
                has_sendable = sender.has_sendable
            if out:
                wire.send(out)
        if wire.unsent_bytes:
            self._watch()
        elif has_sendable:
            client.is_dirty = True
            shared.late.append(self._write_on)
        elif connection.is_closed or (connection.is_draining and connection.is_drained):
            self.close()
            return
        elif self._watched != READABLE:
            self._watch()
        if client.unread_bytes or sender.queued_bytes or wire.unsent_bytes:
            client.note_unread()

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

    # -- time and the end --------------------------------------------------------------

    def begin_drain(self) -> None:
        """Tells the client that no new calls are wanted."""
        self.connection.begin_drain()
        self._client.mark_dirty()

    def finish_drain(self) -> None:
        """Takes no calls beyond those that have come."""
        self.connection.finish_drain()
        self._client.mark_dirty()

    def sweep(self, now_s: float) -> None:
        """Closes, resets or pings what has been silent for too long."""
        if self._timeouts.sweep(now_s, has_more=self._has_more):
            self.close()

    def on_failure(self, error: Exception) -> None:
        """Closes this connection, and no other, because our own code raised."""
        self._shared.clients.counters.failures += 1
        address = self._client.peer.address
        log.error("event=connection_failed peer=%s", address, exc_info=error)
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
        fault = connection.fault
        was_told = not wire.unsent_bytes  # whether the socket took everything
        has_answers = connection.is_drained and not sender.out
        try:
            shared.loop.unwatch(wire.socket.fileno())
            counters.answered += sender.num_answered
            counters.resets += connection.control.num_resets
            counters.decoded_heads += connection.heads.num_decoded
            if fault is not None:
                counters.faults += 1
                counters.floods += fault.code is ErrorCode.ENHANCE_YOUR_CALM
                log.debug(
                    "event=connection_fault peer=%s code=%s reason=%r",
                    self._client.peer.address,
                    fault.code.name,
                    fault.reason,
                )
            wire.end()
            self._client.close()
            connection.close()
            sender.out.clear()
        finally:
            del connection.state.events  # the connection keeps its session no longer
            lingers = was_told and (fault is not None or has_answers)
            shared.clients.let_go(self, wire.socket, lingers=lingers)


Item = tuple[memoryview, bool] | None
"""A message and whether it is compressed; None once the client sends no more."""


class Inbox:
    """Decompresses the messages of a call and hands them to it in order.

    Messages are decompressed on the executor, one at a time; later ones wait.
    Loop-confined.

    Args:
        call: Takes the messages and the client's end. It fails if an error occurs.
        client: The call's.
        on_empty: Called when nothing waits any more, or nobody waits for it.

    """

    def __init__(
        self, call: ExpressCall, client: ClientState, on_empty: Callable[[], object]
    ) -> None:
        self._call = call
        self._client = client
        self._on_empty = on_empty
        self._items: deque[Item] = deque()

    def add(self, message: memoryview, is_compressed: bool) -> None:
        """Takes the next message."""
        self._items.append((message, is_compressed))
        if len(self._items) == 1:
            self._go_on()

    def add_end(self) -> None:
        """Notes that the client sends no more. Earlier messages still wait."""
        self._items.append(None)

    def _go_on(self) -> None:
        """Hands over all messages before the next compressed one."""
        items, call = self._items, self._call
        while items and not call.is_finished:
            item = items[0]
            if item is not None and item[1]:
                client = self._client
                inflate(
                    client.shared.executor,
                    client.shared.loop,
                    item[0],
                    call.stream.head.encoding,
                    client.connection.data.max_request_bytes,
                    lambda: call.is_finished,
                    partial(self._take_room, len(item[0])),
                    self._on_unpacked,
                )
                return
            items.popleft()
            if item is None:
                call.take_end()
            else:
                call.take_message(item[0])
        self._on_empty()

    def _take_room(
        self, sent_bytes: int, num_bytes: int, go_on: Callable[[], None]
    ) -> bool:
        client, stream = self._client, self._call.stream
        budget = client.shared.budget
        budget.settle(stream)  # what was admitted of a message behind it
        num_bytes = budget.with_answer(num_bytes)
        return client.take_room(stream, num_bytes, go_on, sent_bytes, is_all=True)

    def _on_unpacked(self, outcome: bytes | ServingError) -> None:
        self._client.shared.on_large_message()
        call = self._call
        if isinstance(outcome, ServingError):
            call.abort(outcome)
        if call.is_finished:
            self._on_empty()
            return
        self._items.popleft()
        self._client.shared.budget.settle(call.stream)
        assert not isinstance(outcome, ServingError)
        call.take_message(outcome)
        self._go_on()
