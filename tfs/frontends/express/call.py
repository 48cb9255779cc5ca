"""Calls as handlers see them: :class:`tfs.core.call.Call` over one stream.

Everything about a call is decided on the serving loop. If another thread finishes a
call, that is posted to the loop, so the loop decides which finish was first, and no
lock is needed. A call that ends without its handler (deadline, cancellation, lost
connection) is *cut off*: its token is marked, its ``on_cancel`` functions run, and its
work counts against the connection until the handler finishes the call anyway or drops
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Protocol

from tfs.core.call import Metadata, Peer, RpcMethod
from tfs.core.errors import ServingError
from tfs.core.servable import CancelToken
from tfs.frontends.budget import LONG_BYTES, used_up
from tfs.frontends.deadlines import Bucket
from tfs.frontends.http2.connection import Connection
from tfs.frontends.http2.sender import Sender
from tfs.frontends.http2.stream import Stream
from tfs.frontends.status_details import CARDINALITY, handler_error

log = logging.getLogger(__name__)


class WaitingMessages(Protocol):
    """Messages that wait for an earlier one; falsy if there are none. Loop-confined."""

    def __bool__(self) -> bool: ...

    def add(self, message: memoryview, is_compressed: bool) -> None:
        """Takes the next message."""
        ...

    def add_end(self) -> None:
        """Notes that the client sends no more. Earlier messages still wait."""
        ...


class CallOwner(Protocol):
    """What a call needs from its session. Loop-confined."""

    connection: Connection
    sender: Sender
    peer: Peer
    loop_ident: int
    max_stream_queued_bytes: int

    @property
    def checks_answers(self) -> bool:
        """Whether short answers, too, are asked about by :meth:`may_answer`."""
        ...

    @property
    def post(self) -> Callable[[Callable[[], None]], None]:
        """Runs a function on the loop."""
        ...

    def mark_dirty(self) -> None:
        """Requests that output is written at the end of the round."""
        ...

    def admit(self, call: ExpressCall) -> None:
        """Hands a whole request to its handler, once there is room for its answer."""
        ...

    def on_answered(self, stream: Stream) -> None:
        """Notes that a call was finished, by its handler or before it reached one."""
        ...

    def reply_all(
        self, calls: Sequence[ExpressCall], messages: Sequence[bytes]
    ) -> None:
        """Finishes calls of this session, each with its message."""
        ...

    def may_answer(self, call: ExpressCall, num_bytes: int) -> bool:
        """Notes how long an answer is; returns whether it may wait for its client."""
        ...

    def take_room(self, call: ExpressCall, num_bytes: int) -> bool:
        """Takes room for a call that its handler has.

        If there is none, the call is handed over again later.
        """
        ...

    def pause(self, go_on: Callable[[], None]) -> None:
        """Calls ``go_on`` once the client has read some of its answers."""
        ...

    def on_late_finish(self, call: ExpressCall) -> None:
        """Notes that a call was finished twice, or after it was cut off."""
        ...

    def on_handler_failure(self, call: ExpressCall, error: Exception) -> None:
        """Notes that a handler raised; the caller then fails the call."""
        ...

    def expire(self, call: ExpressCall) -> None:
        """Ends a call whose deadline has passed."""
        ...


class ExpressCall:
    """A unary call. ``reply`` and ``fail`` are thread-safe; the rest is loop-confined.

    Attributes:
        metadata: The request's metadata. Keys are in lower case, ``-bin`` values are
            bytes.

    """

    __slots__ = (
        "__weakref__",
        "_cancel",
        "_error",
        "_on_cancel",
        "_session",
        "bucket",
        "deadline_s",
        "has_message",
        "inbox",
        "is_dispatched",
        "is_finished",
        "message",
        "metadata",
        "route",
        "stream",
    )

    def __init__(self, session: CallOwner, stream: Stream, route: RpcMethod) -> None:
        self.message: bytes | memoryview = b""
        self.deadline_s: float | None = None
        self.route = route
        self.stream = stream
        self.metadata: Metadata = stream.head.metadata
        self.is_finished = False
        self.is_dispatched = False
        self.has_message = False
        self.bucket: Bucket[ExpressCall] | None = None
        # Messages that wait until an earlier one has been decompressed.
        self.inbox: WaitingMessages | None = None
        self._session = session
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
        return self._session.peer

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
        session = self._session
        if get_ident() == session.loop_ident:
            self._reply(message)
        else:
            session.post(partial(self._reply, message))

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Finishes the call with OK and one message in parts. Thread-safe."""
        session = self._session
        if get_ident() == session.loop_ident:
            self._reply_parts(parts)
        else:
            session.post(partial(self._reply_parts, parts))

    @staticmethod
    def reply_all(calls: Sequence[ExpressCall], messages: Sequence[bytes]) -> None:
        """Finishes each call with OK and its message. Thread-safe."""
        session = calls[0]._session
        if get_ident() == session.loop_ident:
            _reply_all(calls, messages)
        else:
            session.post(partial(_reply_all, calls, messages))

    def fail(self, error: ServingError) -> None:
        """Finishes the call with ``error``. Thread-safe."""
        session = self._session
        if get_ident() == session.loop_ident:
            self._fail(error)
        else:
            session.post(partial(self._fail, error))

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` if the call ends without its handler; at once if it has."""
        if self._error is not None:
            self._run(fn)
        elif not self.is_finished:
            if self._on_cancel is None:
                self._on_cancel = []
            self._on_cancel.append(fn)

    def take_room(self, num_bytes: int) -> bool:
        """Takes room for itself and its answer; if there is none, waits for its turn."""
        return self._session.take_room(self, num_bytes)

    # -- for the session -----------------------------------------------------------

    def expire(self) -> None:
        """Takes note that the deadline has passed."""
        self._session.expire(self)

    def abort(self, error: ServingError) -> None:
        """Fails the call, and ends it for its handler, which did not. On the loop."""
        functions = self._on_cancel
        if not self.is_finished:
            self._fail(error)
            self._tell_handler(error, functions)

    def cut_off(self, error: ServingError) -> None:
        """Ends the call for its handler; nothing is sent. At most once."""
        functions = self._on_cancel
        self._finish()
        self._tell_handler(error, functions)

    def dispatch(self) -> None:
        """Hands the call to its handler; contains what the handler raises."""
        self.is_dispatched = True
        try:
            self.route.handler(self)  # type: ignore[arg-type]
        except Exception as error:
            self._on_handler_failure(error)

    def take_request(self, message: bytes) -> None:
        """Takes the only message and the client's end at once."""
        self.message = message
        self.has_message = True
        self.is_dispatched = True
        try:
            self.route.handler(self)  # type: ignore[arg-type]
        except Exception as error:
            self._on_handler_failure(error)

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
            self._session.admit(self)
        else:
            self.abort(CARDINALITY)

    def _reply(self, message: bytes) -> None:
        session = self._session
        if self.is_finished:
            session.on_late_finish(self)
            return
        if (
            len(message) >= LONG_BYTES or session.checks_answers
        ) and not session.may_answer(self, len(message)):
            self._fail(used_up())
            return
        self.is_finished = True
        if self.bucket is not None:
            del self.bucket[self]
            self.bucket = None
        stream = self.stream
        session.sender.send_reply(stream, message)
        session.on_answered(stream)

    def _reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        session = self._session
        if self.is_finished:
            session.on_late_finish(self)
            return
        if not session.may_answer(self, sum(map(len, parts))):
            self._fail(used_up())
            return
        self._finish()
        session.sender.send_reply_parts(self.stream, parts)
        session.on_answered(self.stream)

    def _fail(self, error: ServingError) -> None:
        session = self._session
        if self.is_finished:
            session.on_late_finish(self)
            return
        self._finish()
        session.sender.send_error(self.stream, error)
        session.on_answered(self.stream)

    def _on_handler_failure(self, error: Exception) -> None:
        self._session.on_handler_failure(self, error)
        if not self.is_finished:
            self.abort(handler_error(error, self.route.path))

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
        if self.bucket is not None:
            self.bucket.pop(self, None)
            self.bucket = None

    def _run(self, fn: Callable[[], None]) -> None:
        try:
            fn()
        except Exception as error:
            self._session.on_handler_failure(self, error)


def dispatch_all(calls: Sequence[ExpressCall]) -> None:
    """Hands calls of one method to its burst handler; contains what that raises."""
    try:
        calls[0].route.burst_handler(calls)  # type: ignore[misc]
    except Exception as error:
        for call in calls:
            if not call.is_finished:
                call._on_handler_failure(error)


def _reply_all(calls: Sequence[ExpressCall], messages: Sequence[bytes]) -> None:
    start, num = 0, len(calls)
    while start < num:
        session = calls[start]._session
        stop = start + 1
        while stop < num and calls[stop]._session is session:
            stop += 1
        session.reply_all(calls[start:stop], messages[start:stop])
        start = stop
