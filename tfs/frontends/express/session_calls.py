"""The calls on one connection, from their first bytes until nobody works on them.

The connection tells of requests as they arrive (it is these
:class:`~tfs.frontends.http2.events.ConnectionEvents`), and calls
tell of their ends. A whole request goes to its handler at once, or with the others of
its method that arrive in the same round. One whose model gives long answers waits until
the answer has room. A call that ends without its handler is cut off
(``cut_off_calls``).

Exceptions of handlers are contained by the calls. All others pass through to the
session, which closes its connection and no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from tfs.core.call import MethodKind, MethodTable, Peer
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ServingError,
    Unimplemented,
)
from tfs.frontends.budget import LONG_BYTES, used_up
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.cut_off_calls import CutOffCalls
from tfs.frontends.express.inbox import Inbox
from tfs.frontends.express.shared_state import SharedState
from tfs.frontends.express.stream_call import ExpressStreamCall
from tfs.frontends.http2.connection import Connection
from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.request_head import HttpRefusal
from tfs.frontends.http2.stream import Stream

log = logging.getLogger(__name__)

# Compared with the kind of every request; a look-up in the enum takes longer.
_UNARY: Final = MethodKind.UNARY


class Output(Protocol):
    """What calls need of their session's output. Loop-confined.

    Attributes:
        is_dirty: Whether :meth:`flush` will be called.
        unread_bytes: Bytes of answers that the kernel has not taken yet.

    """

    is_dirty: bool
    unread_bytes: int

    def mark_dirty(self) -> None:
        """Requests that :meth:`flush` is called at the end of the round."""
        ...

    def flush(self) -> None:
        """Writes what the round brought."""
        ...

    def note_unread(self) -> None:
        """Counts the answers that the kernel has not taken yet."""
        ...


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
        sender: Sends their answers.

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
        "connection",
        "loop_ident",
        "max_stream_queued_bytes",
        "peer",
        "post",
        "sender",
    )

    def __init__(
        self,
        shared: SharedState,
        session: Output,
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
        self.connection = Connection(self, shared.budget, limits, begun_s)
        self.sender = self.connection.sender
        self._cut_off = CutOffCalls(self.connection.state, self.post)
        self._paused: list[Callable[[], None]] = []

    def close(self) -> None:
        """Cuts off every call, and closes the connection; idempotent."""
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
            error = Unimplemented(f"unknown method {head.path[:200]}")
            self.sender.send_error(stream, error)
            self._let_go(stream)
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
        if shared.answer_sizes.by_model:
            call.message = message
            call.has_message = True
            self._admit_answer(call)
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
                inbox = call.inbox = Inbox(call, self._shared, self.connection)
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
            self.connection.state.release_all(stream)

    def on_output(self) -> None:
        self._session.mark_dirty()

    def _refuse(self, stream: Stream, refusal: HttpRefusal | ServingError) -> None:
        if isinstance(refusal, HttpRefusal):
            self.sender.send_refusal(stream, refusal)
        else:
            self.sender.send_error(stream, refusal)
        self._let_go(stream)

    def _let_go(self, stream: Stream) -> None:
        """Gives back what a stream counts that was answered before it had a call."""
        self.connection.state.release_all(stream)

    # -- what calls tell ---------------------------------------------------------------

    def admit(self, call: ExpressCall) -> None:
        """Hands a whole request to its handler, once its answer has room."""
        shared = self._shared
        if shared.answer_sizes.by_model:
            self._admit_answer(call)
            return
        self._hand_over(call)

    def _admit_answer(self, call: ExpressCall) -> None:
        """Does as :meth:`admit` while any model is known for long answers."""
        shared = self._shared
        num_bytes = shared.answer_sizes.expected_bytes(call.message)
        num_bytes = min(num_bytes, shared.budget.largest_bytes)
        if num_bytes <= call.stream.held_bytes or self._take(call, num_bytes):
            self._hand_over(call)

    def _hand_over(self, call: ExpressCall) -> None:
        shared = self._shared
        arrived = shared.arrived
        if arrived and arrived[0].route is not call.route:
            shared.hand_over()
            arrived = shared.arrived
        if call.route.burst_handler is None:
            call.dispatch()
        else:
            call.is_dispatched = True
            arrived.append(call)

    def _take(self, call: ExpressCall, num_bytes: int) -> bool:
        """Admits so much for a call; if there is no room, it is dispatched later."""
        stream, shared = call.stream, self._shared
        stream.ticket = shared.budget.admit(
            self.connection.state.account,
            num_bytes,
            self._now(),
            partial(_dispatch_later, call),
        )
        return stream.ticket.is_admitted

    def mark_dirty(self) -> None:
        """Requests that output is written at the end of the round."""
        self._session.mark_dirty()

    def on_answered(self, stream: Stream) -> None:
        """Notes that a call was finished, by its handler or before it reached one."""
        if stream.ticket is not None:
            self.connection.state.release_all(stream)
        else:
            self._shared.budget.release(stream.held_bytes)
            stream.held_bytes = 0
        stream.owner = None  # no cycle, so the message is freed with the call
        session = self._session
        if self.sender.queued_bytes:
            session.note_unread()
        if not session.is_dirty:
            session.is_dirty = True
            self._shared.dirty.append(session.flush)

    def reply_all(
        self, calls: Sequence[ExpressCall], messages: Sequence[bytes]
    ) -> None:
        """Finishes calls of this client, each with its message."""
        if len(messages[0]) >= LONG_BYTES or self.checks_answers:
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
            if stream.ticket is not None:
                self.connection.state.release_all(stream)
            held_bytes += stream.held_bytes
            stream.held_bytes = 0
            stream.owner = None
        self._shared.budget.release(held_bytes)
        self.sender.send_replies(streams, messages)
        if self.sender.queued_bytes:
            self._session.note_unread()
        session = self._session
        if not session.is_dirty:
            session.is_dirty = True
            self._shared.dirty.append(session.flush)

    @property
    def checks_answers(self) -> bool:
        """Whether short answers, too, are asked about by :meth:`may_answer`."""
        return bool(self._session.unread_bytes or self._shared.answer_sizes.by_model)

    def may_answer(self, call: ExpressCall, num_bytes: int) -> bool:
        """Notes how long an answer is; returns whether it may wait for its client.

        It takes the place of its request, and of what was admitted for it.
        """
        shared, stream = self._shared, call.stream
        shared.answer_sizes.note(call.message, num_bytes)
        unread_bytes = self._session.unread_bytes
        if unread_bytes and unread_bytes + num_bytes > shared.budget.limit_bytes // 4:
            return False
        ticket = stream.ticket
        num_bytes -= stream.held_bytes
        if ticket is not None and ticket.is_admitted:
            num_bytes -= ticket.num_bytes
        return shared.budget.has_room(num_bytes)

    def take_room(self, call: ExpressCall, num_bytes: int) -> bool:
        """Takes room for a call that its handler has; if there is none, it waits."""
        if call.is_finished or num_bytes < LONG_BYTES:
            return True
        budget = self._shared.budget
        if num_bytes > budget.largest_bytes:
            call.abort(used_up())
            return False
        # It is there itself, joined with others, and as an answer.
        num_bytes = min(3 * num_bytes, budget.largest_bytes)
        stream = call.stream
        ticket = stream.ticket
        if ticket is not None:
            if ticket.num_bytes >= num_bytes:
                return True
            budget.give_back(ticket)  # it must not wait for itself
        call.is_dispatched = self._take(call, num_bytes)
        return call.is_dispatched

    def pause(self, go_on: Callable[[], None]) -> None:
        """Calls ``go_on`` once the client has read some of its answers."""
        self._paused.append(go_on)
        self._session.note_unread()

    def on_late_finish(self, call: ExpressCall) -> None:
        """Notes that a call was finished twice, or after it was cut off."""
        self._shared.clients.counters.late_finishes += 1
        self._cut_off.end(call)

    def on_handler_failure(self, call: ExpressCall, error: Exception) -> None:
        """Logs and counts that a handler raised; the caller then fails the call."""
        self._shared.clients.counters.handler_failures += 1
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
            self.sender.reset(stream, ErrorCode.CANCEL)
        else:
            self.sender.send_error(stream, error)
        self._cut_off_call(call, error)
        self._session.mark_dirty()

    def _cut_off_call(self, call: ExpressCall, error: ServingError) -> None:
        self._shared.clients.counters.cut_off_calls += 1
        if call.is_dispatched and type(call) is ExpressCall:
            # Its work ends when its handler finishes the call or drops it.
            self._cut_off.add(call)
        else:
            self.connection.state.release_all(call.stream)
        call.stream.owner = None
        call.cut_off(error)


def _dispatch_later(call: ExpressCall) -> None:
    if not call.is_finished:
        call.dispatch()
