"""The sending half of a connection: answers, their flow control, the end of streams.

Frames that can be sent at once collect in :attr:`SendingHalf.out`. Bytes that the
client's windows do not take wait with their stream, and streams take turns. This half
knows nothing of what arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from tfs.core.errors import ResourceExhausted, ServingError, Unavailable
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.http2 import response
from tfs.frontends.rpc.express.http2.messages import PREFIX_SIZE
from tfs.frontends.rpc.express.http2.outbox import Outbox, Output
from tfs.frontends.rpc.express.http2.peer_settings import PeerSettings
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_state import (
    ANSWERED,
    REQUESTED,
    Reaction,
    Signal,
    StreamState,
    step,
)
from tfs.frontends.rpc.express.http2.stream_table import StreamTable
from tfs.frontends.rpc.frames import (
    END_HEADERS,
    END_STREAM,
    ErrorCode,
    FrameType,
)
from tfs.frontends.rpc.heads.request_head import HttpRefusal
from tfs.frontends.rpc.least_pace import LEAST_PACE_BYTES_PER_S

_before_message = response.before_message
_ok_trailers = response.ok_trailers
_small_reply = response.small_reply
_pack_prefix = Struct(">BI").pack

_LARGE_OUTPUT: Final = 8192  # parts of this size are not joined with others
_LARGEST_CHUNK: Final = 262_144  # sent of one stream before the next has its turn
_LARGEST_FRAME: Final = 65_536


class SendingHalf:
    """What a connection sends. Confined to the serving loop.

    The first base of :class:`~tfs.frontends.rpc.express.http2.connection.Connection`,
    which adds what it receives. Both halves are one object, because they work on the
    same streams and windows, and the path of a reply must have no detours.

    Attributes:
        out: Finished frames in sending order; the owner takes them.
        has_large_output: Whether ``out`` holds parts that are too large to be joined;
            the owner resets it.
        streams: The live streams by id.
        num_answered: How many requests were answered in full, plus messages streamed.
        blocked: The streams whose answers wait for windows or their turn, by id.
        queued_bytes: Bytes of answers held back by flow control.
        sent_bytes: How many bytes of answers that are long, or were held back, were
            handed to the socket.

    Args:
        max_message_bytes: The longest message sent.
        now_s: The time.

    """

    __slots__ = (
        "_max_message_bytes",
        "_now_s",
        "_peer",
        "_send_window",
        "_sent_chunks",
        "_table",
        "blocked",
        "has_large_output",
        "num_answered",
        "out",
        "queued_bytes",
        "sent_bytes",
        "streams",
    )

    def __init__(self, max_message_bytes: int, now_s: float) -> None:
        self.out: Output = []
        self.has_large_output = False
        self._table = StreamTable()
        self.streams = self._table.live
        self.num_answered = 0
        self.queued_bytes = 0
        self.sent_bytes = 0
        self._max_message_bytes = max_message_bytes
        self._now_s = now_s
        self._peer = PeerSettings()
        self._send_window = frames.DEFAULT_WINDOW
        self.blocked: dict[int, Stream] = {}
        self._sent_chunks = 0

    @property
    def has_sendable(self) -> bool:
        """Whether :meth:`fill` would produce DATA now."""
        if not self.blocked or self._send_window <= 0:
            return False
        return any(stream.send_window > 0 for stream in self.blocked.values())

    @property
    def resident_bytes(self) -> int:
        """Bytes in memory for answers held back, including what was sent of them."""
        sent_bytes = sum(
            stream.outbox.sent_bytes
            for stream in self.blocked.values()
            if stream.outbox is not None
        )
        return self.queued_bytes + sent_bytes

    @property
    def has_output(self) -> bool:
        """Whether there is anything to write or to :meth:`fill` from."""
        return bool(self.out or self.blocked)

    # -- answers ----------------------------------------------------------------------

    def send_reply(self, stream: Stream, message: bytes) -> None:
        """Answers a call with one message and OK; no headers were sent before."""
        size = len(message)
        total = size + PREFIX_SIZE
        stream_id = stream.id
        if size > self._max_message_bytes:
            self.send_error(stream, self.too_large(size))
        elif (
            total <= self._send_window
            and total <= stream.send_window
            and total <= self._peer.max_whole_size
            and not self.blocked
        ):
            self._send_window -= total
            out = self.out
            if size <= response.SMALL_BYTES:
                out.append(_small_reply(stream_id, message))
            else:
                out.append(_before_message(stream_id, size))
                out.append(message)
                out.append(_ok_trailers(stream_id))
                if size > _LARGE_OUTPUT:
                    self.has_large_output = True
            if stream.state is REQUESTED:
                stream.state = ANSWERED
                del self.streams[stream_id]
                self.num_answered += 1
            else:
                self._ended(stream)
        elif not self._may_wait(stream, total):
            self.send_error(stream, unread())
        else:
            self.send_message(stream, message)
            self.send_end(stream, response.OK_TRAILERS_BLOCK)

    def _may_wait(self, stream: Stream, num_bytes: int) -> bool:
        """Tells whether an answer may wait for its client's windows."""
        return True

    def send_replies(
        self, streams: Sequence[Stream], messages: Sequence[bytes]
    ) -> None:
        """Does as :meth:`send_reply` with each stream and its message."""
        max_size = min(
            response.SMALL_BYTES,
            self._max_message_bytes,
            self._peer.max_whole_size - PREFIX_SIZE,
        )
        live = self.streams
        out = self.out
        num_small = 0
        for stream, message in zip(streams, messages, strict=True):
            total = len(message) + PREFIX_SIZE
            if (
                total <= max_size
                and total <= self._send_window
                and total <= stream.send_window
                and stream.state is REQUESTED
                and not self.blocked
            ):
                self._send_window -= total
                out.append(_small_reply(stream.id, message))
                stream.state = ANSWERED
                del live[stream.id]
                num_small += 1
            else:
                self.send_reply(stream, message)
        self.num_answered += num_small

    def send_reply_parts(
        self, stream: Stream, parts: Sequence[bytes | memoryview]
    ) -> None:
        """Does as :meth:`send_reply` with the parts of a large message, uncopied."""
        size = sum(map(len, parts))
        if size > self._max_message_bytes:
            self.send_error(stream, self.too_large(size))
        else:
            self._queue_message(stream, (_pack_prefix(0, size), *parts))
            self.send_end(stream, response.OK_TRAILERS_BLOCK)

    def is_too_large(self, size: int) -> bool:
        """Tells whether a message of that many bytes is longer than the server sends."""
        return size > self._max_message_bytes

    def too_large(self, size: int) -> ServingError:
        """Returns the error of such a message."""
        return ResourceExhausted(
            f"sent message larger than max ({size} vs. {self._max_message_bytes} bytes)"
        )

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Sends one message; queues what the client's windows do not take."""
        prefix = _pack_prefix(0, len(message))
        if len(message) <= response.SMALL_BYTES:
            self._queue_message(stream, (prefix + message,))
        else:
            self._queue_message(stream, (prefix, message))

    def _queue_message(
        self, stream: Stream, parts: Sequence[bytes | memoryview]
    ) -> None:
        self._check_sending(stream, Signal.SEND_DATA)
        self.num_answered += 1
        if not stream.has_sent_headers:
            stream.has_sent_headers = True
            self.out.append(
                response.headers(stream.id, self._next(response.HEAD_BLOCK))
            )
        outbox = stream.outbox
        if outbox is None:
            outbox = stream.outbox = Outbox()
        if not outbox:
            stream.progress_s = self._now_s
            self.blocked[stream.id] = stream
        for part in parts:
            outbox.add(part)
            self.queued_bytes += len(part)

    def send_end(self, stream: Stream, block: bytes) -> None:
        """Ends our side with trailers, once the outbox is empty."""
        self._check_sending(stream, Signal.SEND_END)
        if stream.outbox:
            stream.end_block = block
            return
        if not stream.has_sent_headers and block is response.OK_TRAILERS_BLOCK:
            block = response.HEAD_BLOCK + block
        self.out.append(response.trailers(stream.id, self._next(block)))
        self._ended(stream)

    def send_error(self, stream: Stream, error: ServingError) -> None:
        """Ends a call with an error, after the messages sent before."""
        block = response.error_block(error, not stream.has_sent_headers)
        self.send_end(stream, block)

    def send_refusal(self, stream: Stream, refusal: HttpRefusal) -> None:
        """Answers what is not gRPC with a plain HTTP response."""
        self._check_sending(stream, Signal.SEND_END)
        head, body = response.http_refusal(
            refusal, min(self._send_window, stream.send_window)
        )
        head = self._next(head)
        if body:
            self._send_window -= len(body)
            self.out.append(
                frames.frame(FrameType.HEADERS, END_HEADERS, stream.id, head)
                + frames.frame(FrameType.DATA, END_STREAM, stream.id, body)
            )
        else:
            self.out.append(response.trailers(stream.id, head))
        self._ended(stream)

    def fill(self, max_bytes: int) -> None:
        """Moves queued answers into ``out``, as far as windows and the limit allow.

        Streams take turns, so that a large answer does not hold up the others.
        """
        blocked = self.blocked
        largest_frame = min(self._peer.max_frame_size, _LARGEST_FRAME)
        while blocked and max_bytes > 0 and self._send_window > 0:
            progressed = False
            largest_chunk = _LARGEST_CHUNK if len(blocked) > 1 else max_bytes
            for stream in list(blocked.values()):
                outbox = stream.outbox
                assert outbox is not None
                size = min(
                    outbox.size_bytes,
                    stream.send_window,
                    self._send_window,
                    largest_chunk,
                )
                if size <= 0:
                    continue
                progressed = True
                max_bytes -= size
                self._sent_chunks += outbox.move(
                    self.out, stream.id, size, largest_frame
                )
                self._send_window -= size
                stream.send_window -= size
                stream.progress_s = min(
                    self._now_s, stream.progress_s + size / LEAST_PACE_BYTES_PER_S
                )
                self.queued_bytes -= size
                self.sent_bytes += size
                if size > _LARGE_OUTPUT:
                    self.has_large_output = True
                if not outbox:
                    del blocked[stream.id]
                    if stream.end_block is not None:
                        block = self._next(stream.end_block)
                        self.out.append(response.trailers(stream.id, block))
                        self._ended(stream)
                elif len(blocked) > 1:
                    blocked[stream.id] = blocked.pop(stream.id)  # to the end
                if max_bytes <= 0 or self._send_window <= 0:
                    break
            if not progressed:
                break

    def _next(self, block: bytes) -> bytes:
        """Returns the bytes to send for a header block if it is sent next."""
        if not self._peer.needs_table_update:
            return block
        self._peer.on_table_update()
        return response.NO_TABLE + block

    # -- the end of streams -----------------------------------------------------------

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Sends RST_STREAM and forgets the stream, if it is live; causes no event."""
        if stream.id not in self.streams:
            return
        self._drop(stream, step(stream.state, Signal.SEND_RST_STREAM).next_state)
        self._table.remember_reset(stream.id)
        self.out.append(frames.rst_stream(stream.id, code))

    def _check_sending(self, stream: Stream, signal: Signal) -> None:
        if (
            stream.id not in self.streams
            or stream.end_block is not None
            or step(stream.state, signal).reaction is Reaction.FORBID
        ):
            raise RuntimeError(f"{signal.name} on {stream!r}")

    def _ended(self, stream: Stream) -> None:
        """Closes a stream whose answer has ended; resets it if its request has not."""
        self.num_answered += 1
        state = step(stream.state, Signal.SEND_END).next_state
        if state is StreamState.HALF_CLOSED_LOCAL:
            # The answer is complete; the rest of the request is of no use.
            stream.state = state
            self.reset(stream, ErrorCode.NO_ERROR)
        else:
            self._drop(stream, state)

    def _drop(self, stream: Stream, state: StreamState) -> None:
        """Takes a stream out of every table; its bytes still count as held."""
        stream.state = state
        if self.streams.pop(stream.id, None) is None:
            return
        if stream.outbox is not None:
            self.blocked.pop(stream.id, None)
            self.queued_bytes -= stream.outbox.size_bytes
            stream.outbox = None


def unread() -> ServingError:
    """Returns the error of an answer that would wait while far too many do."""
    return Unavailable(
        "too many answers wait to be read, and this client's windows are closed; try "
        "again after a pause",
        retry_after_s=1.0,
    )
