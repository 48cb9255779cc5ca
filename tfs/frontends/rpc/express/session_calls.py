"""The calls on one connection, from their first bytes until nobody works on them.

The connection tells of requests as they arrive (it is these
:class:`~tfs.frontends.rpc.express.http2.connection_events.ConnectionEvents`), and calls
tell of their ends. A whole request goes to its handler at once, or with the others of
its method that arrive in the same round, or once earlier answers have been read
(``waiting_requests``). A call that ends without its handler is cut off
(``cut_off_calls``).

Exceptions of handlers are contained by the calls. All others pass through to the
session, which closes its connection and no other.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Final

from tfs.core.call import MethodKind, MethodTable, Peer
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ServingError,
    Unimplemented,
)
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES
from tfs.frontends.rpc.express.cut_off_calls import CutOffCalls
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.express_stream_call import ExpressStreamCall
from tfs.frontends.rpc.express.http2.connection import Connection
from tfs.frontends.rpc.express.http2.connection_context import ConnectionContext
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.inbox import Inbox
from tfs.frontends.rpc.express.shared_state import SharedState
from tfs.frontends.rpc.express.socket_output import SocketOutput
from tfs.frontends.rpc.express.waiting_requests import WaitingRequests
from tfs.frontends.rpc.frames import ErrorCode
from tfs.frontends.rpc.heads.request_head import HttpRefusal

log = logging.getLogger(__name__)

# Compared with the kind of every request; a look-up in the enum takes longer.
_UNARY: Final = MethodKind.UNARY


class SessionCalls:
    """The calls of one client. Confined to the serving loop.

    Invariant: an unfinished call is the ``owner`` of its stream, and no stream has an
    owner whose call is finished.

    Attributes:
        connection: The connection that they come from; made here.
        peer: The client.
        loop_ident: The loop's thread.
        post: Runs a function on the loop.
        max_stream_queued_bytes: While more than this is queued on a stream, a call
            cannot send on it.
        notes_answers: Whether short answers are noted: the client's first one, and all
            while any model is known for long ones.

    Args:
        shared: The state of the transport.
        session: Writes what the connection has to send. It may refer to this object
            until it is closed.
        peer: The client.
        methods: The methods that it may call.
        begun_s: When the client was accepted.

    """

    __slots__ = (
        "_cut_off",
        "_methods",
        "_now",
        "_paused",
        "_session",
        "_shared",
        "_waiting",
        "connection",
        "loop_ident",
        "max_stream_queued_bytes",
        "notes_answers",
        "peer",
        "post",
    )

    def __init__(
        self,
        shared: SharedState,
        session: SocketOutput,
        peer: Peer,
        methods: MethodTable,
        begun_s: float,
    ) -> None:
        self._shared = shared
        self._session = session
        self._methods = methods
        self._now = shared.loop.clock.now
        self.peer = peer
        self.loop_ident = shared.loop_ident
        self.post = shared.loop.post
        self.max_stream_queued_bytes = shared.options.max_stream_queued_bytes
        limits = shared.options.limits
        self.connection = Connection(
            ConnectionContext(self, shared.budget, limits, begun_s, shared.buffers)
        )
        self._cut_off = CutOffCalls(self.connection, self.post)
        self._paused: list[Callable[[], None]] = []
        # Later this is what is known of models. Either is as fast to look at.
        self.notes_answers: bool | Collection[bytes] = True
        self._waiting = WaitingRequests(
            session, shared.room, shared.waiting, limits.max_requests_per_round
        )

    def close(self) -> None:
        """Cuts off every call, and closes the connection; idempotent."""
        self._waiting.close()
        self._paused.clear()
        self.connection.close()

    @property
    def are_paused(self) -> bool:
        """Whether streams wait until the client has read answers."""
        return bool(self._paused)

    def go_on(self) -> None:
        """Lets streams go on that waited for the client; some may have to wait again."""
        paused, self._paused = self._paused, []
        for go_on in paused:
            go_on()

    # -- what the connection tells -----------------------------------------------------

    def on_open(self, stream: Stream) -> None:
        head = stream.head
        method = self._methods.get(head.path)
        if head.refusal is not None:
            self._refuse(stream, head.refusal)
            return
        if method is None:
            self.connection.send_error(
                stream, Unimplemented(f"unknown method {head.path[:200]}")
            )
            return
        if method.kind is _UNARY:
            call = ExpressCall(self, stream, method)
        else:
            call = ExpressStreamCall(self, stream, method)
        stream.owner = call
        if head.timeout_s is not None:
            call.deadline_s = stream.opened_s + head.timeout_s
            self._shared.opened.append(call)

    def on_request(self, stream: Stream, message: bytes) -> None:
        call: ExpressCall = stream.owner
        shared = self._shared
        if (
            shared.headroom.unread_bytes or shared.answer_sizes.by_model
        ) and not self._waiting.may_go_on(call, message):
            call.message = message
            call.has_message = True
            self._waiting.add(call)
            return
        arrived = shared.arrived
        if arrived and arrived[0].route is not call.route:
            shared.hand_over()
            arrived = shared.arrived
        if call.route.burst_handler is None:
            call.take_request(message)
        else:
            call.message = message
            call.has_message = True
            call.is_dispatched = True
            arrived.append(call)

    def on_message(
        self, stream: Stream, message: memoryview, is_compressed: bool
    ) -> None:
        call: ExpressCall | None = stream.owner
        if call is None:
            return
        if is_compressed or call.inbox:
            inbox = call.inbox
            if inbox is None:
                inbox = call.inbox = Inbox(
                    call, self._shared, self.connection.max_request_bytes
                )
            inbox.add(message, is_compressed)
        else:
            call.take_message(message)

    def on_end(self, stream: Stream) -> None:
        call: ExpressCall | None = stream.owner
        if call is None:
            return
        if call.inbox:
            call.inbox.add_end()
        else:
            call.take_end()

    def on_fault(self, stream: Stream, error: ServingError) -> None:
        call: ExpressCall | None = stream.owner
        if call is not None:
            call.abort(error)

    def on_reset(self, stream: Stream) -> None:
        call: ExpressCall | None = stream.owner
        if call is not None and not call.is_finished:
            self._cut_off_call(call, Cancelled("the client cancelled the call"))
        elif call is None:
            self.connection.release(stream)

    def _refuse(self, stream: Stream, refusal: HttpRefusal | ServingError) -> None:
        if isinstance(refusal, HttpRefusal):
            self.connection.send_refusal(stream, refusal)
        else:
            self.connection.send_error(stream, refusal)

    # -- what calls tell ---------------------------------------------------------------

    def admit(self, call: ExpressCall) -> None:
        """Hands a whole request to its handler, once there is room for its answer."""
        shared = self._shared
        if shared.starved and len(call.message) >= LARGE_BYTES:
            shared.uploaded.append((weakref.ref(call), len(call.message)))
        if (
            shared.headroom.unread_bytes or shared.answer_sizes.by_model
        ) and not self._waiting.may_go_on(call, call.message):
            self._waiting.add(call)
            return
        arrived = shared.arrived
        if arrived and arrived[0].route is not call.route:
            shared.hand_over()
            arrived = shared.arrived
        if call.route.burst_handler is None:
            call.dispatch()
        else:
            call.is_dispatched = True
            arrived.append(call)

    def mark_dirty(self) -> None:
        """Requests that output is written at the end of the round."""
        self._session.mark_dirty()

    def on_answered(self, stream: Stream) -> None:
        """Notes that a call was finished, by its handler or before it reached one."""
        self._shared.budget.used_bytes -= stream.held_bytes
        stream.held_bytes = 0
        stream.owner = None  # no cycle, so the message is freed with the call
        session = self._session
        if not session.is_dirty:
            session.is_dirty = True
            self._shared.dirty.append(session.flush)

    def reply_all(
        self, calls: Sequence[ExpressCall], messages: Sequence[bytes]
    ) -> None:
        """Finishes calls of this client, each with its message."""
        if len(messages[0]) >= LARGE_BYTES:
            for call, message in zip(calls, messages, strict=True):
                call.reply(message)
            return
        streams: list[Stream] = []
        held_bytes = 0
        for call in calls:
            if call.is_finished:
                num = len(streams)  # this call was cut off: answer the rest one by one
                for left, message in zip(calls[num:], messages[num:], strict=True):
                    left.reply(message)
                messages = messages[:num]
                break
            call.is_finished = True
            bucket = call.bucket
            if bucket is not None:
                del bucket[call]
                call.bucket = None
            stream = call.stream
            streams.append(stream)
            held_bytes += stream.held_bytes
            stream.held_bytes = 0
            stream.owner = None
        self._shared.budget.used_bytes -= held_bytes
        if messages and self.notes_answers:
            self.note_answer(calls[0], len(messages[0]))
        self.connection.send_replies(streams, messages)
        session = self._session
        if not session.is_dirty:
            session.is_dirty = True
            self._shared.dirty.append(session.flush)

    def note_answer(self, call: ExpressCall, num_bytes: int) -> bool:
        """Notes how long an answer is; returns whether it may be sent."""
        sizes = self._shared.answer_sizes
        sizes.note(call.message, num_bytes, self._now(), self._waiting)
        self.notes_answers = sizes.by_model
        return num_bytes < LARGE_BYTES or self._shared.room.has_room_for(
            call, num_bytes
        )

    def take_room(self, call: ExpressCall, num_bytes: int) -> bool:
        """Takes room for a call that its handler has; if there is none, it waits."""
        if call.is_finished or self._waiting.may_grow(call, num_bytes):
            return True
        call.is_dispatched = False
        self._waiting.add(call, num_bytes)
        return False

    def pause(self, go_on: Callable[[], None]) -> None:
        """Calls ``go_on`` once the client has read some of its answers."""
        self._paused.append(go_on)
        self._session.note_soon()

    def on_late_finish(self, call: ExpressCall) -> None:
        """Notes that a call was finished twice, or after it was cut off."""
        self._shared.counters.late_finishes += 1
        self._cut_off.end(call)

    def on_handler_failure(self, call: ExpressCall, error: Exception) -> None:
        """Logs and counts that a handler raised; the caller then fails the call."""
        self._shared.counters.handler_failures += 1
        log.error(
            "event=handler_failed method=%s peer=%s",
            call.route.path,
            self.peer.address,
            exc_info=error,
        )

    def expire(self, call: ExpressCall) -> None:
        """Ends an unfinished call whose deadline has passed."""
        if call.is_finished:
            return
        error = DeadlineExceeded(f"{call.route.path}: deadline exceeded")
        stream = call.stream
        if stream.outbox:
            self.connection.reset(stream, ErrorCode.CANCEL)
        else:
            self.connection.send_error(stream, error)
        self._cut_off_call(call, error)
        self._session.mark_dirty()

    def _cut_off_call(self, call: ExpressCall, error: ServingError) -> None:
        self._shared.counters.cut_off_calls += 1
        if not call.is_dispatched:
            self._waiting.forget(call)
        if call.is_dispatched and type(call) is ExpressCall:
            # Its work ends when its handler finishes the call or drops it.
            self._cut_off.add(call)
        else:
            self.connection.release(call.stream)
        call.stream.owner = None
        call.cut_off(error)
