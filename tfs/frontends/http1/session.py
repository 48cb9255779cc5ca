"""A client's HTTP/1.1 connection: requests in, answers out in the order of requests.

Several requests may be under way (pipelining); an answer that is early waits for those
before it. What the client sends is read only while there is room for it: the socket is
left alone while a long body waits to be admitted, or while answers are not taken.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from tfs.core.call import Peer
from tfs.core.errors import Cancelled, Code, ServingError
from tfs.core.http_call import HttpError
from tfs.core.loop.serving_loop import HANG_UP, READABLE, WRITABLE
from tfs.core.tensor_view import Buffer
from tfs.frontends.budget import LONG_BYTES, Account, Progress, Ticket, used_up
from tfs.frontends.http1.call import HttpRequestCall
from tfs.frontends.http1.request_parser import RequestHead, RequestParser
from tfs.frontends.http1.shared_state import HttpShared
from tfs.frontends.inflation import Encoding, inflate
from tfs.frontends.wire import Wire

log = logging.getLogger(__name__)

_READ_BYTES: Final = 64 << 10
_LONG_READ_BYTES: Final = 256 << 10  # within a long body
_CALL_BYTES: Final = 2048  # what a request without a body takes
_MAX_PIPELINED: Final = 64
_MAX_UNSENT_BYTES: Final = 64 << 10  # beyond that no more requests are read
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_AGE_JITTER: Final = 0.1


class HttpSession:
    """One connection, a ``Session`` that owns its calls (``CallOwner``). Loop-confined.

    Attributes:
        is_closed: Whether the socket is closed.

    Args:
        shared: The state of the transport.
        wire: The client's socket; owned from now on.
        peer: Who it is.

    """

    def __init__(self, shared: HttpShared, wire: Wire, peer: Peer) -> None:
        options = shared.options
        self.peer = peer
        self.loop_ident = shared.loop_ident
        self.post: Callable[[Callable[[], None]], None] = shared.loop.post
        self.compress_bytes = options.compress_bytes
        self.is_closed = False
        self._shared = shared
        self._wire = wire
        self._now = shared.loop.clock.now
        self._budget = shared.budget
        self._account = Account()
        self._parser = RequestParser(
            self.on_head, self.on_body, self.on_complete, options.max_head_bytes
        )
        self._calls: deque[HttpRequestCall] = deque()  # in the order of their requests
        self._incoming: HttpRequestCall | None = None  # whose body arrives
        self._body: bytearray | memoryview = bytearray()  # filled from its beginning
        self._num_filled = 0
        self._num_missing = 0  # of a body whose head was known
        self._raw_head = b""  # of the request that is parsed
        self._out: list[Buffer] = []
        self._unread_bytes = 0  # of answers that the kernel has not taken
        self._is_dirty = False
        self._is_last = False  # no more requests are taken
        self._has_ended = False  # the client sends no more, or nobody reads it
        now_s = self._now()
        self._num_received = 0  # bytes
        self._num_requests = 0
        self._waits_for = 0  # number of a request that is not whole; -1: for the reader
        self._progress = Progress(0, now_s)
        self._idle_since_s = now_s
        spread = random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
        age_s = options.max_connection_age_s
        self._aged_s = now_s + age_s * spread if age_s else None
        self._watched = READABLE
        shared.loop.watch(wire.socket.fileno(), self.on_ready)

    # -- reading -------------------------------------------------------------------------

    def begin(self) -> None:
        self.on_ready(READABLE)

    def on_ready(self, events: int) -> None:
        """Reads and writes what is possible; contains every exception."""
        try:
            if events & HANG_UP:
                self.close()
                return
            if events & WRITABLE and self._wire.unsent_bytes:
                self._wire.send_unsent()
                self._mark_dirty()
            if events & READABLE and not self._has_ended:
                body, wire = self._body, self._wire
                if (
                    self._num_missing
                    and isinstance(body, memoryview)
                    and wire.may_read_into
                ):
                    self._fill_body(body)
                else:
                    is_long = len(body) >= LONG_BYTES
                    data = wire.read(_LONG_READ_BYTES if is_long else _READ_BYTES)
                    self._num_received += len(data)
                    self._receive(data)
        except BlockingIOError:
            if self._wire.unsent_bytes:  # TLS has something of its own to send
                self._mark_dirty()
        except EOFError:
            self._on_end()
        except OSError:
            self.close()
        except Exception as error:
            self.on_failure(error)

    def _fill_body(self, body: memoryview) -> None:
        """Reads more of a long body to where it is kept."""
        begin = self._num_filled
        num_bytes = self._wire.read_into(body[begin : begin + _LONG_READ_BYTES])
        self._num_received += num_bytes
        self._num_filled += num_bytes
        self._num_missing -= num_bytes
        if not self._num_missing:
            self.on_complete()
            self._watch()

    def _receive(self, data: bytes) -> None:
        try:
            data = self._take_known(data)
            if data:
                self._parser.feed(data)
        except HttpError as error:
            self._refuse(error)
        if (
            self._is_last
            or self._incoming is not None
            or len(self._calls) >= _MAX_PIPELINED
        ):
            self._watch()

    def _take_known(self, data: bytes) -> bytes:
        """Takes requests whose heads are known; returns what is left to parse."""
        heads, parser = self._shared.heads, self._parser
        self._raw_head = b""
        if self._num_missing:
            data = self._take_missing(data)
        while data and not (self._is_last or parser.is_inside):
            end = data.find(_HEAD_END) + len(_HEAD_END)
            raw = data[:end]
            head = heads.get(raw)
            if head is None:
                self._raw_head = raw
                break
            stop = end + (head.length or 0)
            if len(data) < stop:
                self.on_head(head)
                self._num_missing = head.length or 0
                return self._take_missing(data[end:])
            call = self._begin(head)
            self._complete(call, data[end:stop])
            data = data[stop:]
        return data

    def _take_missing(self, data: bytes) -> bytes:
        """Takes more of a body; returns what is behind it."""
        body = data[: self._num_missing]
        self._num_missing -= len(body)
        self.on_body(body)
        if not self._num_missing:
            self.on_complete()
        return data[len(body) :]

    def _on_end(self) -> None:
        """Takes note that the client sends no more."""
        self._has_ended = True
        if self._incoming is not None:
            self._refuse(HttpError(400, "the body is shorter than its length"))
        elif self._parser.is_inside:
            self._refuse(HttpError(400, "the request ends in its head"))
        else:
            self.close()  # whoever hangs up waits for nothing, as with nginx

    def _refuse(self, error: HttpError) -> None:
        """Answers what is no request, behind all that came before, and hangs up."""
        if self._is_last:
            return  # nothing is read behind the last request
        self._is_last = self._has_ended = True
        call, self._incoming = self._incoming, None
        if call is None:
            head = RequestHead("GET", "", {}, 1, keeps_alive=False)
            call = self._open(head, _CALL_BYTES)
        call.keeps_alive = False
        self._take_body()
        call.fail(error)

    def _begin(self, head: RequestHead) -> HttpRequestCall:
        """Begins a request, if there is room for it."""
        held_bytes = _CALL_BYTES
        if head.length:
            held_bytes += min(head.length, LONG_BYTES)  # the rest is admitted
        has_room = self._budget.has_room(held_bytes)
        call = self._open(head, held_bytes)
        if not has_room:
            self._incoming = call
            raise HttpError(429, used_up().message)
        return call

    def _open(self, head: RequestHead, held_bytes: int) -> HttpRequestCall:
        """Adds a call, which is answered behind those before it."""
        shared, now_s = self._shared, self._now()
        call = HttpRequestCall(self, head, held_bytes, now_s)
        self._num_requests += 1
        self._budget.used_bytes += held_bytes
        self._calls.append(call)
        is_old = self._aged_s is not None and now_s >= self._aged_s
        if is_old or self._is_last or shared.clients.is_draining:
            call.keeps_alive = False
        timeout_s = shared.options.request_timeout_s
        if timeout_s:
            call.deadline_s = now_s + timeout_s
            shared.opened.append(call)
        return call

    # -- of the parser -----------------------------------------------------------------------

    def on_head(self, head: RequestHead) -> None:
        """Begins a request whose body may follow."""
        if self._is_last:
            raise HttpError(400, "it is behind the last request")
        raw, self._raw_head = self._raw_head, b""
        if raw:
            self._shared.keep_head(raw, head)
        call = self._incoming = self._begin(head)
        length = head.length
        if length is not None and length > self._shared.options.max_body_bytes:
            raise HttpError(413, self._too_long())
        if head.encoding is None:
            raise HttpError(
                415, "this content-encoding is not offered; send gzip, deflate or none"
            )
        if length is not None and length >= LONG_BYTES:
            self._admit(call, length)
        if head.headers.get("expect", "").lower() == "100-continue":
            self._out.append(_CONTINUE)
            self._mark_dirty()

    def on_body(self, data: Buffer) -> None:
        """Takes more of the body."""
        call, body = self._incoming, self._body
        if call is None:
            return
        if isinstance(body, memoryview):  # of a length that was admitted
            begin = self._num_filled
            self._num_filled = begin + len(data)
            body[begin : self._num_filled] = data
            return
        if len(body) + len(data) > self._shared.options.max_body_bytes:
            raise HttpError(413, self._too_long())
        body += data
        if call.head.length is not None:
            return  # counted from its head on
        if call.ticket is None:
            self._budget.hold(call, len(data))
            if len(body) >= LONG_BYTES:
                # Of unknown length: it is admitted as if it were as long as it may be.
                most = min(16 * len(body), self._shared.options.max_body_bytes)
                self._admit(call, most)
        elif len(body) > call.ticket.num_bytes:
            self._budget.hold(call, len(data))
            if not self._budget.has_room(0):
                raise HttpError(429, used_up().message)

    def on_complete(self) -> None:
        """Takes note that the request is whole."""
        call, self._incoming = self._incoming, None
        if call is not None:
            body = self._take_body()
            is_long = len(body) >= LONG_BYTES
            self._complete(call, memoryview(body) if is_long else bytes(body))

    def _take_body(self) -> bytearray | memoryview:
        body, self._body = self._body, bytearray()
        self._num_filled = self._num_missing = 0
        return body

    def _complete(self, call: HttpRequestCall, body: bytes | memoryview) -> None:
        call.message = body
        if not call.keeps_alive:
            self._is_last = True
        if call.ticket is not None:
            if not call.ticket.is_admitted:
                return  # it is handed over once it is admitted
            self._budget.settle(call)
        if call.head.encoding is not Encoding.IDENTITY:
            self._unpack(call)
        else:
            self._shared.arrived.append(call)

    def _too_long(self) -> str:
        return f"the body is longer than {self._shared.options.max_body_bytes} bytes"

    # -- room ----------------------------------------------------------------------------------

    def _admit(self, call: HttpRequestCall, num_bytes: int) -> None:
        """Admits a long body, of which no more is read until then."""
        if num_bytes > self._budget.largest_bytes:
            raise HttpError(429, used_up().message)
        num_bytes = self._budget.with_answer(num_bytes)
        go_on = partial(self._on_admitted, call)
        if self.take_room(call, num_bytes, go_on, is_all=True):
            self._give_memory(call)

    def _on_admitted(self, call: HttpRequestCall) -> None:
        if self._incoming is call:
            self._give_memory(call)
        else:
            self._complete(call, call.message)
        self._watch()

    def _give_memory(self, call: HttpRequestCall) -> None:
        """Gives a body of known length its memory, which is not zeroed first."""
        if call.head.length is not None:
            begun, self._body = self._body, np.empty(call.head.length, np.uint8).data
            self.on_body(begun)

    @property
    def _queued(self) -> Ticket | None:
        """What the body that arrives waits for, if that is room."""
        ticket = None if self._incoming is None else self._incoming.ticket
        return None if ticket is None or ticket.is_admitted else ticket

    def take_room(
        self,
        call: HttpRequestCall,
        num_bytes: int,
        go_on: Callable[[], None] | None = None,
        *,
        is_all: bool,
    ) -> bool:
        """Takes room for a call, which is handed over again if ``go_on`` is not given."""
        return self._budget.take_room(
            call,
            self._account,
            num_bytes,
            self._now(),
            go_on or partial(self._shared.start, call),
            sent_bytes=len(call.message),
            is_all=is_all,
        )

    def _unpack(self, call: HttpRequestCall) -> None:
        """Hands a request over when its body was decompressed."""
        shared, budget = self._shared, self._budget
        most = min(shared.options.max_body_bytes, budget.largest_bytes)

        def take_room(num_bytes: int, go_on: Callable[[], None]) -> bool:
            num_bytes = budget.with_answer(num_bytes)
            return self.take_room(call, num_bytes, go_on, is_all=True)

        def on_unpacked(outcome: bytes | ServingError) -> None:
            if call.is_finished:
                return
            if isinstance(outcome, ServingError):
                call.keeps_alive = False
                too_long = outcome.code is Code.RESOURCE_EXHAUSTED
                call.fail(HttpError(413 if too_long else 400, outcome.message))
                return
            call.message = outcome
            budget.settle(call)
            shared.start(call)

        inflate(
            shared.executor,
            shared.loop,
            call.message,
            call.head.encoding or Encoding.IDENTITY,
            most,
            lambda: call.is_finished,
            take_room,
            on_unpacked,
        )

    # -- writing ---------------------------------------------------------------------------------

    def on_answered(self, call: HttpRequestCall) -> None:
        if self.is_closed:
            return
        calls = self._calls
        waits = calls[0] is not call
        if waits or self._unread_bytes or len(call.answer) > 1:
            self._check_room(call, waits=waits)
        while calls and calls[0].is_finished:
            done = calls.popleft()
            if done is self._incoming:
                # Answered before its body was there: the rest of it is not read.
                self._incoming = None
                self._take_body()
                self._is_last = self._has_ended = True
            self._out += done.answer
            self._release(done)
            if not (done.keeps_alive or calls):
                self._is_last = True
        self._mark_dirty()

    def _check_room(self, call: HttpRequestCall, *, waits: bool) -> None:
        """Refuses an answer that there is no room for; counts one that waits here."""
        num_bytes = sum(map(len, call.answer))
        if not self._budget.may_answer(call, num_bytes, self._unread_bytes):
            call.answer_instead(used_up())
            num_bytes = sum(map(len, call.answer))
        if waits:
            self._budget.hold(call, num_bytes)

    def _mark_dirty(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._shared.dirty.append(self.flush)

    def flush(self) -> None:
        """Writes what the round brought; contains every exception."""
        self._is_dirty = False
        if self.is_closed:
            return
        wire, out = self._wire, self._out
        try:
            if out:
                wire.send(out)
            unread_bytes = wire.unsent_bytes
            if unread_bytes != self._unread_bytes:
                self._budget.release(self._unread_bytes - unread_bytes)
                self._unread_bytes = unread_bytes
            if not (unread_bytes or self._calls):
                self._idle_since_s = self._now()
                if self._is_last:
                    self.close(lingers=True)
                    return
                if self._watched == READABLE:
                    return
            self._watch()
        except OSError:
            self.close()
        except Exception as error:
            self.on_failure(error)

    def _watch(self) -> None:
        if self.is_closed:
            return
        unsent_bytes = self._wire.unsent_bytes
        events = WRITABLE if unsent_bytes else 0
        if not (
            self._is_last
            or self._has_ended
            or self._queued is not None
            or len(self._calls) >= _MAX_PIPELINED
            or unsent_bytes > _MAX_UNSENT_BYTES
        ):
            events |= READABLE
        if events != self._watched:
            self._watched = events
            self._shared.loop.watch(self._wire.socket.fileno(), self.on_ready, events)

    # -- time and the end ----------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        options, wire = self._shared.options, self._wire
        limit_s = options.no_progress_timeout_s
        queued = self._queued
        if queued is not None and now_s - queued.since_s > limit_s:
            self._refuse(HttpError(429, used_up().message))
        elif wire.unsent_bytes:
            if self._is_stuck(-1, wire.sent_bytes, now_s):
                self.close()
        elif (self._incoming or self._parser.is_inside) and not (
            queued is not None or self._is_last
        ):
            if self._is_stuck(self._num_requests, self._num_received, now_s):
                self._refuse(HttpError(408, "the request came too slowly"))
        else:
            self._waits_for = 0
            if self._calls:
                return
            if now_s - self._idle_since_s > options.idle_timeout_s:
                self.close(lingers=True)

    def _is_stuck(self, waits_for: int, num_bytes: int, now_s: float) -> bool:
        if self._waits_for != waits_for:
            self._waits_for = waits_for
            self._progress = Progress(num_bytes, now_s)
        limit_s = self._shared.options.no_progress_timeout_s
        is_stuck = self._progress.move(num_bytes, now_s) > limit_s
        self._shared.clients.counters.timeouts += is_stuck
        return is_stuck

    def begin_drain(self) -> None:
        for call in self._calls:
            call.keeps_alive = False

    def finish_drain(self) -> None:
        """Hangs up, unless a request is under way, behind which that is done."""
        if not (self._calls or self._parser.is_inside):
            self._is_last = True
            self._mark_dirty()

    def fail_all(self, error: ServingError) -> None:
        """Ends every call that is under way."""
        for call in list(self._calls):
            call.cut_off(error)

    def _release(self, call: HttpRequestCall) -> None:
        self._budget.release_all(call)
        call.message = b""

    def on_failure(self, error: Exception) -> None:
        self._shared.clients.counters.failures += 1
        log.error("event=connection_failed peer=%s", self.peer.address, exc_info=error)
        self.close()

    def close(self, *, lingers: bool = False) -> None:
        """Closes the socket; calls that are under way are cancelled. Idempotent.

        Args:
            lingers: Whether the client may still be reading its last answer.

        """
        if self.is_closed:
            return
        self.is_closed = True
        wire = self._wire
        self._shared.loop.unwatch(wire.socket.fileno())
        calls, self._calls = self._calls, deque()
        self._incoming = None
        for call in calls:
            call.cut_off(Cancelled("the client is gone"))
            self._release(call)
        self._take_body()
        self._out.clear()
        wire.end()
        self._budget.release(self._unread_bytes)
        self._unread_bytes = 0
        self._shared.clients.let_go(self, wire.socket, lingers=lingers)
