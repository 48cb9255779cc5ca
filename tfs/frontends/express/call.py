"""Calls as handlers see them: :class:`tfs.core.call.Call` and ``StreamCall`` over one stream.

Everything about a call is decided on the serving loop. If another thread finishes a
call, that is posted to the loop, so the loop decides which finish was first, and no
lock is needed. A call that ends without its handler (deadline, cancellation, lost
connection) is *cut off*: its token is marked, its ``on_cancel`` functions run, and its
work counts against the connection until the handler finishes the call anyway or drops
it.

A whole request goes to its handler at once, or with the others of its method that arrive
in the same round. A long one waits for its turn, because a round takes one of them. One
for which the handler finds no room is handed over again later.

The handler of a stream says before it returns what is to hear of later messages and of
their end. A message is released, so that its client may send more, when that has taken it.
Answers wait on the stream, and a handler that sends more than may wait there is told so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident

from tfs.core.call import Metadata, MethodKind, Peer, RpcMethod
from tfs.core.errors import DeadlineExceeded, ServingError
from tfs.core.loop.serving_loop import Timer
from tfs.core.servable import CancelToken
from tfs.frontends.budget import LONG_BYTES, used_up
from tfs.frontends.express.client_state import ClientState, SharedState
from tfs.frontends.http2 import response
from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.stream import PREFIX_SIZE, Stream
from tfs.frontends.status_details import CARDINALITY, handler_error

log = logging.getLogger(__name__)


class ExpressCall:
    """A unary call. ``reply`` and ``fail`` are thread-safe; the rest is loop-confined.

    Invariant: an unfinished call is the ``owner`` of its stream, and no stream has an
    owner whose call is finished.

    Attributes:
        metadata: The request's metadata. Keys are in lower case, ``-bin`` values are
            bytes.

    """

    __slots__ = (
        "__weakref__",
        "_cancel",
        "_client",
        "_error",
        "_on_cancel",
        "deadline_s",
        "has_message",
        "is_dispatched",
        "is_finished",
        "message",
        "metadata",
        "route",
        "stream",
        "timer",
    )

    def __init__(self, client: ClientState, stream: Stream, route: RpcMethod) -> None:
        self.message: bytes | memoryview = b""
        self.deadline_s: float | None = None
        self.route = route
        self.stream = stream
        self.metadata: Metadata = stream.head.metadata
        self.is_finished = False
        self.is_dispatched = False
        self.has_message = False
        self.timer: Timer | None = None  # of its deadline
        self._client = client
        self._cancel: CancelToken | None = None
        self._error: ServingError | None = None
        self._on_cancel: list[Callable[[], None]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.route.path} of {self.peer.address}>"

    # -- for handlers --------------------------------------------------------------

    @property
    def method(self) -> str:
        """The path."""
        return self.route.path

    @property
    def opened_s(self) -> float:
        """When the headers arrived."""
        return self.stream.opened_s

    @property
    def peer(self) -> Peer:
        """Who calls."""
        return self._client.peer

    @property
    def cancel(self) -> CancelToken:
        """Marked when nobody waits for the answer any more."""
        token = self._cancel
        if token is None:
            token = self._cancel = CancelToken()
            if self._error is not None:
                token.cancel(self._error)
        return token

    def reply(self, message: bytes) -> None:
        """Finishes the call with OK and ``message``. Thread-safe."""
        client = self._client
        if get_ident() == client.loop_ident:
            self._reply(message)
        else:
            client.post(partial(self._reply, message))

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Finishes the call with OK and one message in parts. Thread-safe."""
        client = self._client
        if get_ident() == client.loop_ident:
            self._reply_parts(parts)
        else:
            client.post(partial(self._reply_parts, parts))

    @staticmethod
    def reply_all(calls: Sequence[ExpressCall], messages: Sequence[bytes]) -> None:
        """Finishes each call with OK and its message. Thread-safe."""
        client = calls[0]._client
        if get_ident() == client.loop_ident:
            _reply_all(calls, messages)
        else:
            client.post(partial(_reply_all, calls, messages))

    def fail(self, error: ServingError) -> None:
        """Finishes the call with ``error``. Thread-safe."""
        client = self._client
        if get_ident() == client.loop_ident:
            self._fail(error)
        else:
            client.post(partial(self._fail, error))

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` if the call ends without its handler; at once if it has."""
        if self._error is not None:
            self._run(fn)
        elif not self.is_finished:
            if self._on_cancel is None:
                self._on_cancel = []
            self._on_cancel.append(fn)

    def take_room(self, num_bytes: int, *, is_all: bool = False) -> bool:
        """Takes room; if there is none, the call is handed over again later."""
        if self.is_finished:
            return True
        self.is_dispatched = self._client.take_room(
            self.stream, num_bytes, self.dispatch, len(self.message), is_all=is_all
        )
        return self.is_dispatched

    # -- for the session -----------------------------------------------------------

    def take_request(self, message: bytes) -> None:
        """Takes the only message and the client's end at once."""
        self.message = message
        self.has_message = True
        route, arrived = self.route, self._client.shared.arrived
        if route.burst_handler is None or (arrived and arrived[0].route is not route):
            self._hand_over()
        else:  # as that does, but quicker
            self.is_dispatched = True
            arrived.append(self)

    def take_message(self, message: bytes | memoryview) -> None:
        """Takes the next request message, uncompressed."""
        if self.has_message:
            self.abort(CARDINALITY)
            return
        self.has_message = True
        self.message = message

    def take_end(self) -> None:
        """Takes note that the client sends no more."""
        if self.has_message:
            self._hand_over()
        else:
            self.abort(CARDINALITY)

    def expire(self) -> None:
        """Ends an unfinished call whose deadline has passed."""
        if self.is_finished:
            return
        client, stream = self._client, self.stream
        error = DeadlineExceeded(f"{self.route.path}: deadline exceeded")
        if stream.outbox:
            client.sender.reset(stream, ErrorCode.CANCEL)
        else:
            client.sender.send_error(stream, error)
        self.cut_off(error)
        client.mark_dirty()

    def abort(self, error: ServingError) -> None:
        """Fails the call, and ends it for its handler, which did not. On the loop."""
        functions = self._on_cancel
        if not self.is_finished:
            self._fail(error)
            self._tell_handler(error, functions)

    def cut_off(self, error: ServingError) -> None:
        """Ends an unfinished call for its handler; nothing is sent."""
        client, stream, functions = self._client, self.stream, self._on_cancel
        client.shared.clients.counters.cut_off_calls += 1
        if self.is_dispatched and self.route.kind is MethodKind.UNARY:
            client.add_cut_off(self, stream)
        else:
            client.shared.budget.release_all(stream)
        stream.owner = None
        self._finish()
        self._tell_handler(error, functions)

    def dispatch(self) -> None:
        """Hands the call to its handler; contains what the handler raises."""
        if not self.is_finished:
            self.is_dispatched = True
            try:
                self.route.handler(self)  # type: ignore[arg-type]
            except Exception as error:
                self.on_handler_failure(error)

    def on_handler_failure(self, error: Exception) -> None:
        """Logs and counts that a handler raised; fails the call."""
        self._count_failure(error)
        if not self.is_finished:
            self.abort(handler_error(error, self.route.path))

    # -- within --------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Hands a whole request to its handler; a long one waits in line."""
        shared = self._client.shared
        if len(self.message) >= LONG_BYTES:
            self.is_dispatched = True
            shared.late.append(self.dispatch)
            return
        arrived = shared.arrived
        if arrived and arrived[0].route is not self.route:
            hand_over(shared)
            arrived = shared.arrived
        if self.route.burst_handler is None:
            self.dispatch()
        else:
            self.is_dispatched = True
            arrived.append(self)

    def _reply(self, message: bytes) -> None:
        client, stream = self._client, self.stream
        if self.is_finished:
            client.on_late_finish(self)
            return
        num_bytes = len(message)
        if (num_bytes >= LONG_BYTES or client.unread_bytes) and not client.may_answer(
            stream, num_bytes
        ):
            self._fail(used_up())
            return
        self.is_finished = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        client.sender.send_reply(stream, message)
        client.on_answered(stream)

    def _reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        client, stream = self._client, self.stream
        if self.is_finished:
            client.on_late_finish(self)
        elif client.may_answer(stream, sum(map(len, parts))):
            self._finish()
            client.sender.send_reply_parts(stream, parts)
            client.on_answered(stream)
        else:
            self._fail(used_up())

    def _fail(self, error: ServingError) -> None:
        client = self._client
        if self.is_finished:
            client.on_late_finish(self)
            return
        self._finish()
        client.sender.send_error(self.stream, error)
        client.on_answered(self.stream)

    def _tell_handler(
        self, error: ServingError, functions: list[Callable[[], None]] | None
    ) -> None:
        self._error = error
        if self._cancel is not None:
            self._cancel.cancel(error)
        for fn in functions or ():
            self._run(fn)

    def _finish(self) -> None:
        self.is_finished = True
        self._on_cancel = None  # they may refer to this call, which holds its message
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _run(self, fn: Callable[[], None]) -> None:
        try:
            fn()
        except Exception as error:
            self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
        self._client.shared.clients.counters.handler_failures += 1
        log.error(
            "event=handler_failed method=%s peer=%s",
            self.route.path,
            self.peer.address,
            exc_info=error,
        )


def hand_over(shared: SharedState, now_s: float = 0.0) -> None:
    """Hands the calls that arrived to their handler; contains what that raises.

    This happens at the end of the round, or before a call of another method is handed
    over. It includes calls that were cut off meanwhile, whose tokens are marked, so that
    handlers know of every request that arrived whole.
    """
    calls: list[ExpressCall] = shared.arrived
    if calls:
        shared.arrived = []
        try:
            calls[0].route.burst_handler(calls)  # type: ignore[misc]
        except Exception as error:
            for call in calls:
                if not call.is_finished:
                    call.on_handler_failure(error)


def _reply_all(calls: Sequence[ExpressCall], messages: Sequence[bytes]) -> None:
    start, num = 0, len(calls)
    while start < num:
        client = calls[start]._client
        stop = start + 1
        while stop < num and calls[stop]._client is client:
            stop += 1
        _reply_to(client, calls[start:stop], messages[start:stop])
        start = stop


def _reply_to(
    client: ClientState, calls: Sequence[ExpressCall], messages: Sequence[bytes]
) -> None:
    """Finishes calls of one client, each with its message."""
    if (
        len(messages[0]) >= LONG_BYTES
        or client.unread_bytes
        or [call for call in calls if call.is_finished]
    ):
        for call, message in zip(calls, messages, strict=True):
            call._reply(message)
        return
    streams: list[Stream] = []
    held_bytes = 0
    for call in calls:
        call.is_finished = True
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        stream = call.stream
        streams.append(stream)
        if stream.ticket is not None:
            client.shared.budget.release_all(stream)
        held_bytes += stream.held_bytes
        stream.held_bytes = 0
        stream.owner = None
    client.shared.budget.release(held_bytes)
    client.sender.send_replies(streams, messages)
    if client.sender.queued_bytes:
        client.note_unread()
    client.mark_dirty()


class ExpressStreamCall(ExpressCall):
    """A call with any number of messages in either direction. Confined to the loop.

    A bidirectional call is dispatched with its first message. If its client sends none,
    it ends with OK, and its handler is never called.
    """

    __slots__ = (
        "_on_half_close",
        "_on_message",
    )

    def __init__(self, client: ClientState, stream: Stream, route: RpcMethod) -> None:
        super().__init__(client, stream, route)
        self._on_message: Callable[[bytes | memoryview], None] | None = None
        self._on_half_close: Callable[[], None] | None = None

    # -- for handlers --------------------------------------------------------------

    def send(self, message: bytes) -> bool:
        """Queues one message; False, and nothing sent, if too much is queued."""
        client, stream, num_bytes = self._client, self.stream, len(message)
        if not self.is_finished and client.sender.is_too_large(num_bytes):
            self.abort(client.sender.too_large(num_bytes))
            return False
        most_bytes = client.shared.options.max_stream_queued_bytes
        outbox = stream.outbox
        if self.is_finished or (
            outbox
            and (
                outbox.size_bytes > most_bytes
                or not client.may_answer(stream, num_bytes)
            )
        ):
            return False
        client.sender.send_message(stream, message)
        client.mark_dirty()
        return True

    def on_message(self, fn: Callable[[bytes | memoryview], None]) -> None:
        """Calls ``fn`` on the loop for each later request message."""
        if not self.is_finished:
            self._on_message = fn

    def on_half_close(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` once when the client will send no more."""
        if not self.is_finished:
            self._on_half_close = fn

    def finish(self) -> None:
        """Ends the stream with OK."""
        client = self._client
        if get_ident() == client.loop_ident:
            self._end()
        else:
            client.post(self._end)

    # -- for the session -----------------------------------------------------------

    def take_request(self, message: bytes) -> None:
        """Takes the first message and the client's end at once."""
        self.take_message(message)
        if not self.is_finished:
            self.take_end()

    def take_message(self, message: bytes | memoryview) -> None:
        """Takes the next request message, uncompressed."""
        if self.route.kind is not MethodKind.BIDIRECTIONAL:
            super().take_message(message)
        elif not self.has_message:
            self.has_message = True
            self.message = message
            self.dispatch()
        else:
            if self._on_message is not None:
                self._tell(partial(self._on_message, message))
            connection = self._client.connection
            connection.state.release(self.stream, len(message) + PREFIX_SIZE)
            connection.data.let_send(self.stream)

    def take_end(self) -> None:
        """Takes note that the client sends no more."""
        if self.route.kind is not MethodKind.BIDIRECTIONAL:
            super().take_end()
        elif not self.has_message:
            self.finish()
        elif self._on_half_close is not None:
            self._tell(self._on_half_close)

    def _reply(self, message: bytes) -> None:
        sender = self._client.sender
        if not self.is_finished:
            if sender.is_too_large(len(message)):
                self._fail(sender.too_large(len(message)))
                return
            sender.send_message(self.stream, message)
        self._end()

    def _reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self._reply(b"".join(parts))

    def _end(self) -> None:
        client = self._client
        if self.is_finished:
            client.on_late_finish(self)
            return
        self._finish()
        client.sender.send_end(self.stream, response.OK_TRAILERS_BLOCK)
        client.on_answered(self.stream)

    def _finish(self) -> None:
        super()._finish()
        self._on_message = None  # it may refer to this call, as _on_cancel may
        self._on_half_close = None

    def _tell(self, fn: Callable[[], None]) -> None:
        try:
            fn()
        except Exception as error:
            self.on_handler_failure(error)
