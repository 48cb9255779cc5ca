"""A client's HTTP/1.1 connection: requests in, answers out in the order of requests.

Several requests may be under way (pipelining); an answer that is early waits for those
before it. What the client sends is read only while there is room for it: the wire is
left alone while a long body waits to be admitted, or while answers are not taken.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from tfs.core.call import Peer
from tfs.core.errors import (
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.http_call import HttpHandler, HttpReply
from tfs.core.serving_loop import HANG_UP, READABLE, WRITABLE, ServingLoop
from tfs.frontends.budget import (
    LONG_BYTES,
    Account,
    MemoryBudget,
    used_up,
)
from tfs.frontends.http1.call import HttpRequestCall, failure
from tfs.frontends.http1.options import HttpOptions
from tfs.frontends.http1.request_parser import (
    BadRequestError,
    RequestHead,
    RequestParser,
)
from tfs.frontends.http2.outbox import Output
from tfs.frontends.wire import Wire

log = logging.getLogger(__name__)

_READ_BYTES: Final = 64 << 10
_CALL_BYTES: Final = 2048  # what a request without a body takes
_MAX_PIPELINED: Final = 64
_MAX_UNSENT_BYTES: Final = 64 << 10  # beyond that no more requests are read
_LARGE_BYTES: Final = 64 << 10  # answers that are not joined
_INFLATE_BYTES: Final = 64 << 10  # at a time
_SUSPICIOUS_BYTES: Final = 4 << 20
_SUSPICIOUS_RATIO: Final = 100
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_AGE_JITTER: Final = 0.1
_LINGER_S: Final = 2.0


class HttpSession:
    """One connection. Loop-confined.

    Attributes:
        peer: The client.
        loop_ident: The loop's thread.
        is_closed: Whether the socket is closed.

    Args:
        wire: Its socket, in plain text or over TLS; owned from now on.
        peer: Who it is.
        loop: The serving loop.
        options: Limits.
        budget: What all clients together may take.
        handler: Answers its requests.
        on_closed: Told once.

    """

    def __init__(
        self,
        wire: Wire,
        peer: Peer,
        loop: ServingLoop,
        options: HttpOptions,
        budget: MemoryBudget,
        handler: HttpHandler,
        on_closed: Callable[[HttpSession], None],
    ) -> None:
        self.peer = peer
        self.loop_ident = loop.thread_ident
        self.is_closed = False
        self._wire = wire
        self._socket = wire.socket
        self._loop = loop
        self._options = options
        self._budget = budget
        self._account = Account()
        self._handler = handler
        self._on_closed = on_closed
        self._parser = RequestParser(self, options.max_head_bytes)
        self._calls: deque[HttpRequestCall] = deque()  # in the order of their requests
        self._incoming: HttpRequestCall | None = None  # whose body arrives
        self._body = bytearray()
        self._inflater: zlib._Decompress | None = None
        self._num_packed = 0
        self._unsent_bytes = 0  # of the wire, as counted in the budget
        self._is_last = False  # no more requests are taken
        self._is_draining = False
        self._is_refused = False  # something the client still sends is not wanted
        self._has_ended = False  # the client sends no more, or nobody reads it
        self._lingers_until_s: float | None = None
        now_s = loop.clock.now()
        self._moved_s = now_s  # when a byte was last read or taken
        self._idle_since_s = now_s
        spread = random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
        age_s = options.max_connection_age_s
        self._aged_s = now_s + age_s * spread if age_s else None
        self._watched = 0
        self._watch()

    @property
    def post(self) -> Callable[[Callable[[], None]], None]:
        return self._loop.post

    # -- reading -------------------------------------------------------------------------

    def begin(self) -> None:
        """Reads what came with a TLS handshake."""
        self._on_ready(READABLE)

    def _on_ready(self, events: int) -> None:
        try:
            if events & WRITABLE:
                self._send([])
            if not self.is_closed and events & (READABLE | HANG_UP):
                self._read()
        except Exception as error:  # a fault of ours must not end the loop
            log.error("event=http_session_failed", exc_info=error)
            self.close()

    def _read(self) -> None:
        if self._lingers_until_s is not None:
            self._drop_rest()
            return
        try:
            data = self._wire.read(_READ_BYTES)
        except BlockingIOError:
            self._watch()  # TLS may have something of its own to send
            return
        except EOFError:
            data = b""
        if data:
            self._moved_s = self._loop.clock.now()
            self._receive(data)
        else:
            self._has_ended = True
            if self._incoming is not None:
                self._refuse(
                    BadRequestError(400, "the body is shorter than its length")
                )
            elif self._parser.is_in_head:
                self._refuse(BadRequestError(400, "the request ends in its head"))
            else:
                self.close()  # whoever hangs up waits for nothing, as with nginx

    def _drop_rest(self) -> None:
        """Reads more of a request that was refused, and forgets it."""
        try:
            if self._socket.recv(_READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def _receive(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except BadRequestError as error:
            self._refuse(error)
        self._watch()

    def _refuse(self, error: BadRequestError) -> None:
        """Answers what is no request, behind all that came before, and hangs up."""
        self._is_last = self._has_ended = self._is_refused = True
        call, self._incoming = self._incoming, None
        if call is None:
            head = RequestHead("GET", "", {}, 1, keeps_alive=False)
            call = self._new_call(head)
        call.keeps_alive = False
        self._release_body()
        wrong = InvalidArgument(str(error))
        reply = failure(wrong)
        call.respond(HttpReply(reply.body, error.status))

    def _new_call(self, head: RequestHead) -> HttpRequestCall:
        call = HttpRequestCall(self, head)
        call.kept_bytes = _CALL_BYTES
        self._budget.used_bytes += _CALL_BYTES
        self._calls.append(call)
        return call

    # -- of the parser -----------------------------------------------------------------------

    def on_head(self, head: RequestHead) -> None:
        """Begins a request."""
        call = self._incoming = self._new_call(head)
        now_s = self._loop.clock.now()
        if self._is_last or self._is_draining or self._is_old(now_s):
            call.keeps_alive = False
        length = head.length
        if length is not None and length > self._options.max_body_bytes:
            raise BadRequestError(413, self._too_long())
        encoding = head.headers.get("content-encoding", "identity").lower()
        if encoding in ("gzip", "x-gzip"):
            self._inflater = zlib.decompressobj(31)
            self._num_packed = 0
        elif encoding != "identity":
            raise BadRequestError(
                415, f"content-encoding {encoding} is not offered; send gzip or none"
            )
        timeout_s = self._options.request_timeout_s
        if timeout_s:
            call.deadline_s = now_s + timeout_s
        if not self._budget.has_room(min(length or 0, LONG_BYTES)):
            raise BadRequestError(429, used_up().message)
        if length is not None and length >= LONG_BYTES:
            self._admit(call, length)
        if head.headers.get("expect", "").lower() == "100-continue":
            self._send([_CONTINUE])

    def on_body(self, data: bytes) -> None:
        """Takes more of the body."""
        call = self._incoming
        if call is None:
            return
        if self._inflater is None:
            self._append(call, data)
            return
        self._num_packed += len(data)
        inflater = self._inflater
        try:
            while data:
                self._append(call, inflater.decompress(data, _INFLATE_BYTES))
                data = inflater.unconsumed_tail
                size = len(self._body)
                if size > max(_SUSPICIOUS_BYTES, _SUSPICIOUS_RATIO * self._num_packed):
                    raise BadRequestError(
                        413,
                        f"the body unpacks to over {_SUSPICIOUS_RATIO} times its size; "
                        "send it uncompressed",
                    )
        except zlib.error as error:
            raise BadRequestError(400, f"the body is no gzip: {error}") from None

    def _append(self, call: HttpRequestCall, data: bytes) -> None:
        body = self._body
        if len(body) + len(data) > self._options.max_body_bytes:
            raise BadRequestError(413, self._too_long())
        body += data
        if call.ticket is None:
            call.kept_bytes += len(data)
            self._budget.used_bytes += len(data)
            if len(body) >= LONG_BYTES:
                # Of unknown length: it is admitted as if it were as long as it may be.
                self._admit(call, min(16 * len(body), self._options.max_body_bytes))
        elif len(body) > call.ticket.num_bytes:
            call.kept_bytes += len(data)
            self._budget.used_bytes += len(data)
            if not self._budget.has_room(0):
                raise BadRequestError(429, used_up().message)

    def on_complete(self) -> None:
        """Hands the request over; after the room it waits for has come."""
        call, self._incoming = self._incoming, None
        if call is None:
            return
        inflater, self._inflater = self._inflater, None
        if inflater is not None and not inflater.eof and self._num_packed:
            self._incoming = call
            raise BadRequestError(400, "the body ends within its gzip stream")
        body, self._body = self._body, bytearray()
        call.message = bytes(body) if len(body) < LONG_BYTES else memoryview(body)
        if not call.keeps_alive:
            self._is_last = True
        ticket = call.ticket
        if ticket is None or ticket.is_admitted:
            self._hand_over(call)
        # Otherwise it is handed over once it is admitted.

    def _hand_over(self, call: HttpRequestCall) -> None:
        if call.is_finished:
            return
        deadline_s = call.deadline_s
        if deadline_s is not None and call.timer is None:
            call.timer = self._loop.call_at(deadline_s, call.expire)
        try:
            self._handler(call)
        except Exception as error:
            call.crash(error)

    def _too_long(self) -> str:
        return f"the body is longer than {self._options.max_body_bytes} bytes"

    # -- room ----------------------------------------------------------------------------------

    def _admit(self, call: HttpRequestCall, num_bytes: int) -> None:
        if num_bytes > self._budget.largest_bytes:
            raise BadRequestError(429, used_up().message)
        call.ticket = self._budget.admit(
            self._account, num_bytes, self._loop.clock.now(), partial(self._go_on, call)
        )

    def _go_on(self, call: HttpRequestCall) -> None:
        """Goes on with a request that was admitted now."""
        self._moved_s = self._loop.clock.now()
        if self._incoming is not call:
            self._hand_over(call)
        self._watch()

    @property
    def _waits_for_room(self) -> bool:
        call = self._incoming
        return (
            call is not None and call.ticket is not None and not call.ticket.is_admitted
        )

    def take_room(self, call: HttpRequestCall, num_bytes: int) -> bool:
        ticket = call.ticket
        if ticket is not None and ticket.is_admitted and ticket.num_bytes >= num_bytes:
            return True
        if ticket is not None:
            self._budget.give_back(ticket)
        if num_bytes > self._budget.largest_bytes:
            raise ResourceExhausted(used_up().message)
        call.ticket = self._budget.admit(
            self._account,
            num_bytes,
            self._loop.clock.now(),
            partial(self._hand_over, call),
        )
        return call.ticket.is_admitted

    # -- writing ---------------------------------------------------------------------------------

    def compresses(self, call: HttpRequestCall, reply: HttpReply) -> bool:
        if sum(map(len, reply.body)) < self._options.compress_bytes:
            return False
        accepted = call.head.headers.get("accept-encoding", "")
        return any(
            part.partition(";")[0].strip().lower() == "gzip"
            and "q=0" not in part.replace(" ", "").split(";")[1:]
            for part in accepted.split(",")
        )

    def on_answered(self, call: HttpRequestCall) -> None:
        if self.is_closed:
            return
        calls = self._calls
        if calls[0] is not call:
            return  # those before it come first
        answers: Output = []
        while calls and calls[0].is_finished:
            if calls[0] is self._incoming:
                # Answered before its body was there: the rest of it is not read.
                self._incoming = None
                self._is_last = self._has_ended = self._is_refused = True
                calls[0].keeps_alive = False
            done = calls.popleft()
            answers += done.answer
            done.answer = []
            self._release(done)
            if not done.keeps_alive:
                self._is_last = True
        self._send(answers)

    def _send(self, parts: Output) -> None:
        wire = self._wire
        was_idle, sent_bytes = not wire.unsent_bytes, wire.sent_bytes
        try:
            if parts:
                wire.send(parts, is_large=sum(map(len, parts)) > _LARGE_BYTES)
            else:
                wire.send_unsent()
        except OSError:
            self.close()
            return
        if was_idle or sent_bytes != wire.sent_bytes:
            self._moved_s = self._loop.clock.now()
        if not wire.unsent_bytes and not self._calls:
            self._idle_since_s = self._loop.clock.now()
            if self._is_last or (self._is_draining and self._incoming is None):
                self._hang_up()
                return
        self._watch()

    def _hang_up(self) -> None:
        """Ends the connection behind the last answer.

        A client that may still be sending gets time to read that answer: a socket closed
        with unread bytes resets the connection.
        """
        self._wire.end()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        if not self._is_refused:
            self.close()
            return
        self._lingers_until_s = self._loop.clock.now() + _LINGER_S
        self._watch()

    def _watch(self) -> None:
        if self.is_closed:
            return
        unsent_bytes = self._wire.unsent_bytes
        if unsent_bytes != self._unsent_bytes:
            self._budget.release(self._unsent_bytes - unsent_bytes)
            self._unsent_bytes = unsent_bytes
        events = WRITABLE if unsent_bytes else 0
        if self._lingers_until_s is not None or (
            not self._is_last
            and not self._has_ended
            and not self._waits_for_room
            and len(self._calls) < _MAX_PIPELINED
            and unsent_bytes <= _MAX_UNSENT_BYTES
        ):
            events |= READABLE
        if events != self._watched:
            self._watched = events
            self._loop.watch(self._socket.fileno(), self._on_ready, events)

    # -- time and the end ----------------------------------------------------------------------------

    def _is_old(self, now_s: float) -> bool:
        return self._aged_s is not None and now_s >= self._aged_s

    def sweep(self, now_s: float) -> None:
        """Closes the connection if its client keeps the server waiting."""
        if self._lingers_until_s is not None:
            if now_s >= self._lingers_until_s:
                self.close()
            return
        options = self._options
        waits_for_client = bool(self._unsent_bytes) or (
            (self._incoming is not None and not self._waits_for_room)
            or self._parser.is_in_head
        )
        if waits_for_client and now_s - self._moved_s > options.no_progress_timeout_s:
            self.close()
        elif not waits_for_client and not self._calls:
            idle_s = now_s - self._idle_since_s
            if idle_s > options.idle_timeout_s or self._is_old(now_s):
                self._hang_up()

    def begin_drain(self) -> None:
        """Takes no more requests behind those that are there."""
        self._is_draining = True
        for call in self._calls:
            call.keeps_alive = False
        if not self._calls and self._incoming is None and not self._unsent_bytes:
            self._hang_up()

    def fail_all(self, error: ServingError) -> None:
        """Ends every call that is under way."""
        for call in list(self._calls):
            call.cut_off(error)

    def _release(self, call: HttpRequestCall) -> None:
        self._budget.release(call.kept_bytes)
        call.kept_bytes = 0
        call.message = b""
        if call.ticket is not None:
            self._budget.give_back(call.ticket)
            call.ticket = None

    def _release_body(self) -> None:
        self._body = bytearray()
        self._inflater = None

    def close(self) -> None:
        """Closes the socket; calls that are under way are cancelled. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.unwatch(self._socket.fileno())
        self._wire.end()
        self._socket.close()
        calls, self._calls = self._calls, deque()
        self._incoming = None
        for call in calls:
            call.drop()
            self._release(call)
        self._release_body()
        self._budget.release(self._unsent_bytes)
        self._unsent_bytes = 0
        self._on_closed(self)


def draining() -> ServingError:
    """Returns the error of what comes too late."""
    return Unavailable("the server is shutting down")
