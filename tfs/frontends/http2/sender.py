"""What a connection sends: answers, their flow control, the end of streams.

Frames that can be sent at once collect in :attr:`Sender.out`. Bytes that the client's
windows do not take wait with their stream, and streams take turns. Nothing here knows
what arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from tfs.core.errors import ResourceExhausted, ServingError
from tfs.frontends.http2 import frames, response
from tfs.frontends.http2.frames import (
    DEFAULT_FRAME_SIZE,
    LARGEST_WINDOW,
    ConnectionFault,
    ErrorCode,
    Setting,
)
from tfs.frontends.http2.request_head import HttpRefusal
from tfs.frontends.http2.stream import (
    PREFIX_SIZE,
    Outbox,
    Output,
    Stream,
    StreamState,
    StreamTable,
)

_before_message = response.before_message
_ok_trailers = response.ok_trailers
_small_reply = response.small_reply
_pack_prefix = Struct(">BI").pack
# Looked up in the enum, these take longer.
_REQUESTED: Final = StreamState.REQUESTED
_CLOSED: Final = StreamState.CLOSED

_LARGEST_CHUNK: Final = 262_144  # sent of one stream before the next has its turn
_LARGEST_FRAME: Final = 65_536


class Sender:
    """The sending half of a connection. Confined to the serving loop.

    Attributes:
        out: Finished frames in sending order; the owner takes them.
        num_answered: How many requests were answered in full, plus messages streamed.
        blocked: The streams whose answers wait for windows or their turn, by id.
        queued_bytes: Bytes of answers held back by flow control.
        sent_bytes: Bytes that were held back and then handed to the socket.
        initial_window: Bytes that may be sent on a new stream.
        max_frame_size: Largest frame payload that the client takes, in bytes.
        window: Bytes that may be sent on the connection.

    Args:
        table: The connection's streams.
        max_message_bytes: The longest message sent.

    """

    __slots__ = (
        "_max_message_bytes",
        "_streams",
        "_table",
        "blocked",
        "initial_window",
        "max_frame_size",
        "num_answered",
        "out",
        "queued_bytes",
        "sent_bytes",
        "window",
    )

    def __init__(self, table: StreamTable, max_message_bytes: int) -> None:
        self.out: Output = []
        self.num_answered = 0
        self.queued_bytes = 0
        self.sent_bytes = 0
        self.blocked: dict[int, Stream] = {}
        self.initial_window = self.window = frames.DEFAULT_WINDOW
        self.max_frame_size = DEFAULT_FRAME_SIZE
        self._table = table
        self._streams = table.live
        self._max_message_bytes = max_message_bytes

    @property
    def has_sendable(self) -> bool:
        """Whether :meth:`fill` would produce DATA now."""
        if not self.blocked or self.window <= 0:
            return False
        return any(stream.send_window > 0 for stream in self.blocked.values())

    def take_settings(self, payload: bytes) -> None:
        """Applies the client's SETTINGS in order (RFC 9113, section 6.5).

        HEADER_TABLE_SIZE means nothing, because our header blocks use no table;
        MAX_CONCURRENT_STREAMS and ENABLE_PUSH are about pushing, and MAX_HEADER_LIST_SIZE
        is advice: our header lists are short.

        Raises:
            ConnectionFault: A value, or the window of a stream by it, is out of its range.

        """
        before = self.initial_window
        for key, value in frames.parse_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                self.initial_window = value
            elif key == Setting.MAX_FRAME_SIZE:
                self.max_frame_size = value
        for stream in self._streams.values():
            stream.send_window += self.initial_window - before
            if stream.send_window > LARGEST_WINDOW:
                raise ConnectionFault(
                    ErrorCode.FLOW_CONTROL_ERROR, "window overflow by SETTINGS"
                )
        self.out.append(frames.SETTINGS_ACK)

    # -- answers ----------------------------------------------------------------------

    def send_reply(self, stream: Stream, message: bytes) -> None:
        """Answers a call with one message and OK; no headers were sent before."""
        size = len(message)
        total = size + PREFIX_SIZE
        stream_id = stream.id
        if size > self._max_message_bytes:
            self.send_error(stream, self.too_large(size))
        elif (
            total <= self.window
            and total <= stream.send_window
            and total <= self.max_frame_size
            and not self.blocked
        ):
            self.window -= total
            out = self.out
            if size <= response.SMALL_BYTES:
                out.append(_small_reply(stream_id, message))
            else:
                out.append(_before_message(stream_id, size))
                out.append(message)
                out.append(_ok_trailers(stream_id))
            if stream.state is _REQUESTED:  # as _ended does, but quicker
                stream.state = _CLOSED
                del self._streams[stream_id]
                self.num_answered += 1
            else:
                self._ended(stream)
        else:
            self.send_message(stream, message)
            self.send_end(stream, response.OK_TRAILERS_BLOCK)

    def send_replies(
        self, streams: Sequence[Stream], messages: Sequence[bytes]
    ) -> None:
        """Does as :meth:`send_reply` with each stream and its message."""
        max_size = min(
            response.SMALL_BYTES,
            self._max_message_bytes,
            self.max_frame_size - PREFIX_SIZE,
        )
        live = self._streams
        out = self.out
        num_small = 0
        for stream, message in zip(streams, messages, strict=True):
            total = len(message) + PREFIX_SIZE
            if (
                total <= max_size
                and total <= self.window
                and total <= stream.send_window
                and stream.state is _REQUESTED
                and not self.blocked
            ):
                self.window -= total
                out.append(_small_reply(stream.id, message))
                stream.state = _CLOSED
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
        self._check_sending(stream)
        self.num_answered += 1
        if not stream.has_sent_headers:
            stream.has_sent_headers = True
            self.out.append(response.headers(stream.id))
        outbox = stream.outbox
        if outbox is None:
            outbox = stream.outbox = Outbox()
        if not outbox:
            self.blocked[stream.id] = stream
        num_bytes = sum(map(len, parts))
        for part in parts:
            outbox.add(part)
        self.queued_bytes += num_bytes

    def send_end(self, stream: Stream, block: bytes) -> None:
        """Ends our side with trailers, once the outbox is empty."""
        self._check_sending(stream)
        if stream.outbox:
            stream.end_block = block
            return
        if not stream.has_sent_headers and block is response.OK_TRAILERS_BLOCK:
            block = response.HEAD_BLOCK + block
        self.out.append(response.trailers(stream.id, block))
        self._ended(stream)

    def send_error(self, stream: Stream, error: ServingError) -> None:
        """Ends a call with an error, after the messages sent before."""
        block = response.error_block(error, not stream.has_sent_headers)
        self.send_end(stream, block)

    def send_refusal(self, stream: Stream, refusal: HttpRefusal) -> None:
        """Answers what is not gRPC with a plain HTTP response."""
        self._check_sending(stream)
        head = response.http_refusal(refusal)
        self.out.append(response.trailers(stream.id, head))
        self._ended(stream)

    def fill(self, max_bytes: int) -> None:
        """Moves queued answers into ``out``, as far as windows and the limit allow.

        Streams take turns, so that a large answer does not hold up the others.
        """
        blocked = self.blocked
        largest_frame = min(self.max_frame_size, _LARGEST_FRAME)
        while blocked and max_bytes > 0 and self.window > 0:
            progressed = False
            largest_chunk = _LARGEST_CHUNK if len(blocked) > 1 else max_bytes
            for stream in list(blocked.values()):
                outbox = stream.outbox
                assert outbox is not None
                size = min(
                    outbox.size_bytes,
                    stream.send_window,
                    self.window,
                    largest_chunk,
                )
                if size <= 0:
                    continue
                progressed = True
                max_bytes -= size
                outbox.move(self.out, stream.id, size, largest_frame)
                self.window -= size
                stream.send_window -= size
                self.queued_bytes -= size
                self.sent_bytes += size
                if not outbox:
                    del blocked[stream.id]
                    if stream.end_block is not None:
                        self.out.append(response.trailers(stream.id, stream.end_block))
                        self._ended(stream)
                elif len(blocked) > 1:
                    blocked[stream.id] = blocked.pop(stream.id)  # to the end
                if max_bytes <= 0 or self.window <= 0:
                    break
            if not progressed:
                break

    # -- the end of streams -----------------------------------------------------------

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Sends RST_STREAM and forgets the stream, if it is live; causes no event."""
        if stream.id not in self._streams:
            return
        self.drop(stream, StreamState.RESET)
        self._table.remember_reset(stream.id)
        self.out.append(frames.rst_stream(stream.id, code))

    def _check_sending(self, stream: Stream) -> None:
        if stream.id not in self._streams or stream.end_block is not None:
            raise RuntimeError(f"{stream!r} has ended for us")

    def _ended(self, stream: Stream) -> None:
        """Closes a stream whose answer has ended; resets it if its request has not."""
        self.num_answered += 1
        if stream.state is _REQUESTED:
            self.drop(stream, _CLOSED)
        else:
            # The answer is complete; the rest of the request is of no use.
            self.reset(stream, ErrorCode.NO_ERROR)

    def drop(self, stream: Stream, state: StreamState) -> None:
        """Takes a stream out of every table; its bytes still count as held."""
        stream.state = state
        if self._streams.pop(stream.id, None) is None:
            return
        if stream.outbox is not None:
            self.blocked.pop(stream.id, None)
            self.queued_bytes -= stream.outbox.size_bytes
            stream.outbox = None
