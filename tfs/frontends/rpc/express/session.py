"""One accepted socket: bytes in, bytes out, and the calls in between.

Reading is bounded per round; sending is done by the base class.

Any exception on the way, from a socket or from our own code, closes this connection
and no other.
"""

from __future__ import annotations

import logging
import socket
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from tfs.core.call import MethodKind, MethodTable, Peer
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ServingError,
    Unimplemented,
)
from tfs.core.serving_loop import HANG_UP, READABLE, WRITABLE
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES
from tfs.frontends.rpc.express.express_call import ExpressCall, ExpressStreamCall
from tfs.frontends.rpc.express.http2.connection import Connection
from tfs.frontends.rpc.express.http2.connection_context import ConnectionContext
from tfs.frontends.rpc.express.http2.frames import ConnectionFault, ErrorCode
from tfs.frontends.rpc.express.http2.request_head import HttpRefusal
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.inbox import Inbox
from tfs.frontends.rpc.express.shared_state import SharedState
from tfs.frontends.rpc.express.silence import Silence
from tfs.frontends.rpc.express.socket_output import SocketOutput
from tfs.frontends.rpc.express.turns import BUSY_S, is_busy

log = logging.getLogger(__name__)

_UNARY: Final = (
    MethodKind.UNARY
)  # asked of every request; an enum takes a while to tell


_KERNEL_BYTES: Final = 4 << 20  # a socket takes this even if its client does not read
_PROBE_S: Final = 0.5  # time for a client to go on with its upload
# The favoured client must make progress within this time. One that has finished uploads
# gets twice as long.
_STALL_S: Final = 1.0
_LEAST_PROGRESS_BYTES: Final = 16_384  # in that time; 1 Mbit/s is seven times as fast
# Small requests may begin with this many times as much unread as large ones.
_SMALL_MORE: Final = 4


class Session(SocketOutput):
    """A client's connection on its socket. Confined to the serving loop.

    Attributes:
        peer: The client.
        opened_s: When it was accepted.
        begun_bytes: Bytes that the requests in progress may take, as far as the server
            counts them.
        had_favour: Whether it was favoured before.
        probed_s: When its client was last granted a little, to see whether it goes on.

    """

    __slots__ = (
        "_busy_s",
        "_cut_off",
        "_has_more",
        "_has_waited",
        "_methods",
        "_num_given_up",
        "_on_closed",
        "_progress",
        "_read_s",
        "_silence",
        "_waiting",
        "begun_bytes",
        "had_favour",
        "loop_ident",
        "max_stream_queued_bytes",
        "opened_s",
        "peer",
        "post",
        "probed_s",
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
        self._methods = methods
        self.peer = peer
        self.loop_ident = shared.loop_ident
        self.post = shared.loop.post
        self.max_stream_queued_bytes = shared.options.max_stream_queued_bytes
        self.connection = Connection(
            ConnectionContext(
                self, shared.budget, shared.options.limits, now_s, shared.buffers
            )
        )
        self.opened_s = now_s
        self._silence = Silence(shared, now_s)
        self._read_s = now_s
        self.had_favour = False
        self.probed_s = -inf
        # Of the upload that it was favoured for: since when it has had how many bytes.
        self._progress = now_s, 0
        self._num_given_up = 0  # uploads given up until then
        self._busy_s = -inf
        self._has_more = False
        self._has_waited = False  # whether others had a turn since
        # Calls that were cut off and whose handlers may still work on them.
        self._cut_off: dict[int, tuple[weakref.ref[ExpressCall], Stream]] = {}
        # Whole requests that begin once earlier answers have been read.
        self._waiting: deque[ExpressCall] = deque()
        self.begun_bytes = 0
        shared.loop.watch(client.fileno(), self.on_ready)

    def __repr__(self) -> str:
        return f"<Session {self.peer.address} on {self.peer.listener}>"

    # -- the loop's callbacks --------------------------------------------------------

    def on_ready(self, events: int) -> None:
        """Reads and writes what is possible; contains every exception."""
        try:
            if events & HANG_UP:
                self.close()  # both directions are closed: nobody is left to answer
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
            # Or only its sending direction is closed, which is to give up as well:
            # requests end by END_STREAM. So it is in grpc's own servers.
            self.close()
            return
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        now_s = self._read_s = self._now()
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
            shared.starved[self] = None

    def refill(self) -> None:
        """Grants the client what the receive budget had no room for until now."""
        if not self.is_closed:
            self.connection.refill()
            connection = self.connection
            if not (
                connection.is_starved
                or connection.is_narrow
                or (not self.is_responsive and connection.is_uploading)
            ):
                self._shared.starved.pop(self, None)
            if self.connection.has_output:
                self.mark_dirty()

    def sweep(self, now_s: float) -> None:
        """Closes, resets or pings what has been silent for too long."""
        self._silence.sweep(
            self,
            now_s,
            self._read_s,
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
            self._noted_bytes,
            "closed: clients that take no answers have more waiting than there is room "
            "for",
        )
        self.connection.terminate(
            ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "answers are taken too slowly")
        )
        self.flush()  # what says so, if the socket takes it
        self.close()

    @property
    def wants_favour(self) -> bool:
        """Whether it has an upload to finish."""
        connection = self.connection
        return (
            not self.is_closed
            and connection.is_uploading
            and not connection.is_choked
            and (self.is_responsive or self._now() - self.probed_s < _PROBE_S)
        )

    @property
    def keeps_favour(self) -> bool:
        """Whether the upload that it was favoured for is unfinished."""
        connection = self.connection
        return (
            not self.is_closed
            and connection.is_uploading
            and not connection.is_choked
            and connection.num_given_up == self._num_given_up
        )

    @property
    def is_stalled(self) -> bool:
        """Whether the favoured client sends next to nothing of what it may.

        Also true if it gave the upload up and keeps the room for another one. This has
        to be called repeatedly. A client that has finished uploads gets more time.
        """
        connection = self.connection
        if connection.num_given_up != self._num_given_up and connection.has_window:
            return True
        uploaded_bytes = connection.uploaded_bytes
        now_s = self._now()
        if (
            uploaded_bytes is None
            or abs(uploaded_bytes - self._progress[1]) >= _LEAST_PROGRESS_BYTES
        ):
            self._progress = now_s, uploaded_bytes or 0
            return False
        allowed_s = 2 * _STALL_S if self.connection.num_uploads else _STALL_S
        return now_s - self._progress[0] > allowed_s

    def give_up_uploads(self) -> None:
        """Fails the uploads of a client that others cannot wait for."""
        self._silence.give_up_uploads(self)

    @property
    def is_responsive(self) -> bool:
        """Whether its client has made use of what :meth:`probe` granted it."""
        return self.probed_s <= self._read_s or not self.connection.has_window

    def probe(self) -> None:
        """Grants its client a little, to see whether it goes on with its upload."""
        self.probed_s = self._now()
        self.connection.probe()
        self.mark_dirty()

    @property
    def can_be_answered(self) -> bool:
        """Whether its client would take any part of an answer now."""
        return self.connection.can_be_answered

    @property
    def num_uploads(self) -> int:
        """How many uploads it has finished."""
        return self.connection.num_uploads

    def favour(self, is_favoured: bool) -> None:
        """Lets the session use the budget's reserve, or ends that."""
        self.connection.favour(is_favoured)
        if is_favoured:
            self.had_favour = True
            self.probed_s = now_s = self._now()
            self._progress = now_s, 0
            self._num_given_up = self.connection.num_given_up

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
        ) and not self._may_go_on(call, message):
            call.message = message
            call.has_message = True
            self._wait(call)
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

    def admit(self, call: ExpressCall) -> None:
        """Hands a whole request to its handler, once there is room for its answer."""
        shared = self._shared
        if shared.starved and len(call.message) >= LARGE_BYTES:
            shared.uploaded.append((weakref.ref(call), len(call.message)))
        if (
            shared.headroom.unread_bytes or shared.answer_sizes.by_model
        ) and not self._may_go_on(call, call.message):
            self._wait(call)
        else:
            call.dispatch()

    def _may_go_on(self, call: ExpressCall, message: bytes | memoryview) -> bool:
        """Tells whether a request need not wait, and counts the long answer it may have.

        Requests that came earlier go first.
        """
        num_bytes = self._shared.answer_sizes.expected_bytes(message)
        if self._must_wait(call, len(message), num_bytes):
            return False
        if num_bytes > len(message):
            if self._waiting:
                return False
            self._shared.note_begun(call, self, num_bytes)
        return True

    def _must_wait(self, call: ExpressCall, size: int, num_bytes: int) -> bool:
        """Tells whether a request has to wait because too many answers are unread.

        A small request begins if its own client reads well, whatever others do, unless
        its answer is known to be long. Of requests with long answers, a client may have
        as many in progress as it has read before.

        Args:
            call: The request's.
            size: The size of the request in bytes.
            num_bytes: The size of its answer or its own, whichever is larger.

        """
        if call.route.kind is not _UNARY:
            return False
        headroom = self._shared.headroom
        unread_bytes = self._unsent_bytes + self.connection.queued_bytes
        most_bytes = headroom.open_to_reader_bytes
        if num_bytes >= LARGE_BYTES:
            if size < num_bytes:
                taking_bytes = unread_bytes + self.begun_bytes + num_bytes
                if taking_bytes <= self.connection.sent_bytes - _KERNEL_BYTES:
                    return False
                unread_bytes += self.begun_bytes
            return unread_bytes > most_bytes or not headroom.has_room(num_bytes)
        if headroom.is_full:
            return unread_bytes >= LARGE_BYTES
        return unread_bytes > most_bytes * _SMALL_MORE

    def _wait(self, call: ExpressCall) -> None:
        shared = self._shared
        self._waiting.append(call)
        shared.waiting[self] = None
        shared.headroom.waiting_bytes += len(call.message)

    def _forget_waiting(self, call: ExpressCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
            self._shared.headroom.waiting_bytes -= len(call.message)

    @property
    def may_begin(self) -> bool:
        """Whether the first waiting request may begin, or none waits."""
        if not self._waiting:
            return True
        call = self._waiting[0]
        num_bytes = self._shared.answer_sizes.expected_bytes(call.message)
        return not self._must_wait(call, len(call.message), num_bytes)

    def begin_waiting(self) -> None:
        """Begins requests that waited, as far as they may; contains every exception.

        It begins one large request at most, so that other clients have their turn.
        """
        shared = self._shared
        num_left = shared.options.limits.max_requests_per_round
        while num_left > 0 and self._waiting and self.may_begin:
            call = self._waiting[0]
            self._forget_waiting(call)
            shared.note_begun(
                call, self, shared.answer_sizes.expected_bytes(call.message)
            )
            is_large = len(call.message) >= LARGE_BYTES
            num_left = 0 if is_large else num_left - 1
            call.dispatch()
        shared.waiting.pop(self, None)
        if self._waiting:
            shared.waiting[self] = None  # move it behind the others

    def on_fault(self, stream: Stream, error: ServingError) -> None:
        call: ExpressCall | None = stream.owner
        if call is not None and not call.is_finished:
            call.fail(error)

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

    def on_answered(self, stream: Stream) -> None:
        """Notes that a call was finished, by its handler or before it reached one."""
        self._shared.budget.used_bytes -= stream.held_bytes
        stream.held_bytes = 0
        stream.owner = None  # no cycle, so the message is freed with the call
        if not self.is_dirty:
            self.is_dirty = True
            self._shared.dirty.append(self.flush)

    def reply_all(
        self, calls: Sequence[ExpressCall], messages: Sequence[bytes]
    ) -> None:
        """Finishes calls of this session, each with its message."""
        streams: list[Stream] = []
        held_bytes = 0
        for call in calls:
            if call.is_finished:
                num = len(streams)  # one was cut off: send the rest one by one
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
        if messages and len(messages[0]) >= LARGE_BYTES:
            self.note_large_answer(calls[0].message, len(messages[0]))
        self.connection.send_replies(streams, messages)
        if not self.is_dirty:
            self.is_dirty = True
            self._shared.dirty.append(self.flush)

    def note_large_answer(self, request: bytes | memoryview, num_bytes: int) -> None:
        """Notes that a model's answers are long."""
        self._shared.answer_sizes.note(request, num_bytes, self._now())

    def on_late_finish(self, call: ExpressCall) -> None:
        """Notes that a call was finished twice, or after it was cut off."""
        self._shared.counters.late_finishes += 1
        self._on_work_ended(id(call))

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
        self.mark_dirty()

    def _cut_off_call(self, call: ExpressCall, error: ServingError) -> None:
        self._shared.counters.cut_off_calls += 1
        if self._waiting and not call.is_dispatched:
            self._forget_waiting(call)
        works = call.is_dispatched and type(call) is ExpressCall
        if works:
            # Its work ends when its handler says so, or has let go of it.
            key = id(call)
            loop_post = self.post
            reference = weakref.ref(
                call, lambda _: loop_post(partial(self._on_work_ended, key))
            )
            self._cut_off[key] = (reference, call.stream)
            self.connection.num_cut_off += 1
        else:
            self.connection.release(call.stream)
        call.stream.owner = None
        call.cut_off(error)

    def _on_work_ended(self, key: int) -> None:
        found = self._cut_off.pop(key, None)
        if found is not None:
            self.connection.num_cut_off -= 1
            self.connection.release(found[1])

    # -- the end -----------------------------------------------------------------------

    def on_failure(self, error: Exception) -> None:
        """Closes this connection, and no other, because our own code raised."""
        self._shared.counters.failures += 1
        log.error("event=connection_failed peer=%s", self.peer.address, exc_info=error)
        self.close()

    def close(self) -> None:
        """Closes the socket and cuts off every call; idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        shared = self._shared
        counters, connection = shared.counters, self.connection
        was_told = not self._unsent  # whether everything was sent
        try:
            shared.loop.unwatch(self._socket.fileno())
            shared.starved.pop(self, None)
            shared.waiting.pop(self, None)
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
            connection.close()
            connection.out.clear()
        finally:
            if was_told and connection.fault is not None:
                shared.lingering.take(self._socket)
            else:
                self._socket.close()
            self._on_closed(self)
