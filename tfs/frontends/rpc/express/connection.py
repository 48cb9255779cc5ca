"""One client's HTTP/2 connection, without a socket (RFC 9113, gRPC over HTTP/2).

Bytes go in through :meth:`Connection.receive`; what they mean comes out as calls of
a :class:`ConnectionEvents`, in order and on the same stack; what is to be sent
collects in :attr:`Connection.out`. The caller owns the socket, the clock and the
calls; this class owns stream states, flow control both ways, HPACK and limits.

The ordinary request, one cached header block and one DATA frame that ends the
stream, takes a path of its own through ``receive``: it is most of the traffic, and
every table look-up it skips is one whose answer is a constant.

A peer that breaks the rules ends the connection, never the caller: ``receive``
does not raise for anything the peer sends, it queues GOAWAY and sets ``is_closed``.
Exceptions raised by the events object do pass through.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NoReturn

from tfs.core.errors import forget_frames
from tfs.frontends.rpc.express import frames, response
from tfs.frontends.rpc.express.connection_events import NOBODY, ConnectionEvents
from tfs.frontends.rpc.express.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.flow_control import ReceiveBudget
from tfs.frontends.rpc.express.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    LARGEST_WINDOW,
    PADDED,
    PREFACE,
    PRIORITIZED,
    ConnectionFault,
    ErrorCode,
    FrameType,
    Setting,
    unpack_head,
    unpack_uint32,
)
from tfs.frontends.rpc.express.hpack_cache import HeadCache
from tfs.frontends.rpc.express.hpack_decoder import HpackDecoder
from tfs.frontends.rpc.express.messages import PREFIX_SIZE
from tfs.frontends.rpc.express.patience import Annoyance
from tfs.frontends.rpc.express.receive_buffers import ReceiveBuffers
from tfs.frontends.rpc.express.request_head import MalformedHead
from tfs.frontends.rpc.express.stream import Stream
from tfs.frontends.rpc.express.stream_intake import StreamIntake
from tfs.frontends.rpc.express.stream_state import (
    OPENED,
    REQUESTED,
    Reaction,
    Signal,
    StreamState,
    received,
)

_unpack_prefix = Struct(">BI").unpack_from
# WINDOW_UPDATE whole, the head of a DATA frame, the prefix of the message in it.
_UPDATE_THEN_DATA: Final = Struct(">IBIIIBIBI")
_unpack_update_then_data = _UPDATE_THEN_DATA.unpack_from
_UPDATE_WORD: Final = 4 << 8 | FrameType.WINDOW_UPDATE

_BLOCK_FRAMES: Final = frozenset((FrameType.HEADERS, FrameType.CONTINUATION))
_SMALL_CONTINUATION: Final = 512
_TINY_INCREMENT: Final = 64
_TINY_UPDATES_AT_ONCE: Final = 32  # are taken ill together
_TINY_WINDOW_UPDATE: Final = Annoyance.TINY_WINDOW_UPDATE
_LARGE_REQUEST: Final = 65_536
_DRAIN_PING: Final = b"tfsdrain"
_KEEPALIVE_PING: Final = b"tfsalive"


class Connection(StreamIntake):
    """The state of one connection. Confined to the serving loop.

    How it begins, what frames it gets and how it ends; the bases know what streams
    take in, and what they send.

    Attributes:
        is_closed: GOAWAY is queued with an error, or the drain is over: send what
            is in ``out``, then close the socket.
        fault: Why the peer was cut off, if it was.
        max_requests: Begun, and made whole, in one ``receive``; the owner's to change.
        max_large: Of these, how many may be large.
        num_begun: Requests begun in the last ``receive``.
        num_cut_off: Calls that ended early whose work still runs; they count
            against ``max_concurrent_streams``. Kept by the owner.
        num_resets: Streams that the peer reset.

    Args:
        events: Is told what the peer does.
        budget: The server's receive budget.
        limits: What the peer may ask.
        now_s: The time.
        buffers: Where large messages get their memory, if it has some.

    """

    __slots__ = (
        "_accept_limit",
        "_block",
        "_block_ends",
        "_block_frames",
        "_block_since_s",
        "_block_stream_id",
        "_by_block",
        "_cache",
        "_has_greeted",
        "_is_draining",
        "_num_tiny_updates",
        "_ping_mark",
        "_rest_since_s",
        "_saw_preface",
        "_saw_settings",
        "_skipped_ids",
        "fault",
        "is_closed",
        "max_large",
        "max_requests",
        "num_begun",
        "num_cut_off",
        "num_resets",
    )

    def __init__(
        self,
        events: ConnectionEvents,
        budget: ReceiveBudget,
        limits: ConnectionLimits,
        now_s: float,
        buffers: ReceiveBuffers | None = None,
    ) -> None:
        super().__init__(events, budget, limits, now_s, buffers)
        self.is_closed = False
        self.fault: ConnectionFault | None = None
        self.num_begun = 0
        self.num_cut_off = 0
        self.num_resets = 0
        self.max_requests = self.max_large = limits.max_requests_per_round
        self._cache = HeadCache(
            HpackDecoder(max_list_bytes=limits.max_header_list_bytes)
        )
        self._by_block = self._cache.by_block
        self._rest_since_s = now_s
        self._saw_preface = False
        self._saw_settings = False
        # A header block that waits for CONTINUATION.
        self._block_stream_id = 0
        self._block = bytearray()
        self._block_ends = False
        self._block_frames = 0
        self._block_since_s = now_s
        # The last that were left out, and with that closed, before a head that was not
        # in the cache: clients that do so do it at the beginning.
        self._skipped_ids = range(0)
        self._accept_limit = LARGEST_WINDOW  # the GOAWAY we sent
        self._is_draining = False
        self._num_tiny_updates = 0
        self._ping_mark = -1
        # Our preface waits for the client's: who speaks HTTP/1 gets an answer in it.
        self._has_greeted = False

    # -- what the sweep of timeouts asks -----------------------------------------

    @property
    def is_established(self) -> bool:
        """Whether the client's preface and SETTINGS arrived."""
        return self._saw_settings

    @property
    def stuck_since_s(self) -> float | None:
        """Since when a header block or a frame other than DATA is unfinished."""
        if self._block_stream_id:
            return self._block_since_s
        return self._rest_since_s if self._rest else None

    @property
    def num_decoded_heads(self) -> int:
        """Request heads that were not in the cache of header blocks."""
        return self._cache.num_decoded

    @property
    def is_idle(self) -> bool:
        """Whether there is no call and no trace of one."""
        return not self.streams and not self.num_cut_off

    # -- receiving ----------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> bool:
        """Takes bytes from the peer; may be empty, to go on after True.

        Returns:
            Whether whole frames are left because the bound of requests per round
            was reached: call again, with no new bytes, in the next round.

        """
        if self.is_closed:
            return False
        self._now_s = now_s
        self.num_begun = 0
        begun_after = self._last_stream_id
        if self._rest:
            data = self._rest + data
        try:
            index, has_more = self._parse(data)
            self.num_begun = (self._last_stream_id - begun_after + 1) // 2
            if self._num_tiny_updates >= _TINY_UPDATES_AT_ONCE:
                num, self._num_tiny_updates = self._num_tiny_updates, 0
                self._patience.spend(_TINY_WINDOW_UPDATE, now_s, self.num_answered, num)
        except ConnectionFault as fault:
            self.terminate(fault)
            return False
        if self.is_closed:
            return False
        if index or not self._rest:
            self._rest_since_s = now_s
        self._rest = data[index:]
        if self._window.size < self._window.low_water:
            self.refill()
        return has_more

    def refill(self) -> None:
        """Raises the client's window again, as far as the budget allows."""
        if self._has_greeted and not self.is_closed:
            update = self._window.refill()
            if update:
                self.out.append(update)

    def _parse(self, data: bytes) -> tuple[int, bool]:
        index = 0
        size = len(data)
        if not self._saw_preface:
            if size < len(PREFACE):
                if not PREFACE.startswith(data):
                    self._reject_preface(data)
                return 0, False
            if not data.startswith(PREFACE):
                self._reject_preface(data)
            self._saw_preface = True
            self._greet()
            index = len(PREFACE)
        # Some clients send many heads and then what belongs to them: both are counted.
        num_left = num_whole_left = self.max_requests
        self._num_large = 0
        streams = self.streams
        by_block = self._by_block
        events = self._events
        window = self._window
        while True:
            if self._data_stream_id:
                index = self._continue_data(data, index, size)
                if self._data_stream_id or self.is_closed:
                    return index, False
                num_whole_left -= self._data_ends
                if self._num_large >= self.max_large:
                    num_whole_left = 0
            if size - index < HEAD_SIZE:
                return index, False
            word, flags, stream_id = unpack_head(data, index)
            payload = index + HEAD_SIZE
            length = word >> 8
            frame_type = word & 0xFF
            end = payload + length
            if frame_type == 0:
                if num_whole_left <= 0:
                    return index, True
                stream = streams.get(stream_id)
                if (
                    stream is not None
                    and flags == END_STREAM
                    and end <= size
                    and length >= PREFIX_SIZE
                    and stream.assembler is None
                    and stream.state is OPENED
                    and self._block_stream_id == 0
                    and length <= window.size
                ):
                    flag, body = _unpack_prefix(data, payload)
                    announced = stream.head.content_length
                    if (
                        flag == 0
                        and body == length - PREFIX_SIZE
                        and body <= self._max_request_bytes
                        and (announced is None or announced == length)
                    ):
                        window.size -= length
                        stream.held_bytes = length
                        stream.received_bytes = length
                        stream.state = REQUESTED
                        num_whole_left -= 1
                        events.on_request(stream, data[payload + PREFIX_SIZE : end])
                        index = end
                        if self.is_closed:
                            return index, False
                        continue
                if (
                    stream is not None
                    and stream.state is OPENED
                    and flags | END_STREAM == END_STREAM
                    and 0 < length <= self._limits.max_frame_size
                    and self._block_stream_id == 0
                ):
                    if stream.assembler is not None:
                        behind = self._take_middles(data, index, size)
                        if behind != index:
                            index = behind
                            continue
                    # A part of a large message: the table accepts it, no padding.
                    self._data_stream_id = stream_id
                    self._data_left = length
                    self._data_ends = flags == END_STREAM
                    index = payload
                    continue
            elif frame_type == 1 and end <= size and flags == END_HEADERS and num_left:
                head = by_block.get(data[payload:end])
                if (
                    head is not None
                    and stream_id & 1
                    and self._last_stream_id < stream_id <= self._accept_limit
                    and self._saw_settings
                    and self._block_stream_id == 0
                    and len(streams) + self.num_cut_off
                    < self._limits.max_concurrent_streams
                    and self.queued_bytes <= self._limits.max_queued_bytes
                ):
                    num_left -= 1
                    self._last_stream_id = stream_id
                    stream = streams[stream_id] = Stream(
                        stream_id, head, OPENED, self._peer.initial_window, self._now_s
                    )
                    events.on_open(stream)
                    index = end
                    if self.is_closed:
                        return index, False
                    # gRPC's own library widens the stream's window first, and then
                    # sends the message: both at once, for the cases without fault.
                    payload = index + _UPDATE_THEN_DATA.size
                    if payload > size or data[index + 3] != 8:
                        continue
                    (
                        word,
                        _,
                        updated_id,
                        increment,
                        data_word,
                        flags,
                        data_id,
                        flag,
                        body,
                    ) = _unpack_update_then_data(data, index)
                    end = payload + body
                    length = body + PREFIX_SIZE
                    announced = head.content_length
                    if (
                        word == _UPDATE_WORD
                        and updated_id == stream_id == data_id
                        and 0 < increment <= LARGEST_WINDOW - stream.send_window
                        and data_word == length << 8
                        and flags == END_STREAM
                        and flag == 0
                        and end <= size
                        and body <= self._max_request_bytes
                        and length <= window.size
                        and (announced is None or announced == length)
                        and num_whole_left > 0
                        and stream.state is OPENED
                    ):
                        self._num_tiny_updates += increment < _TINY_INCREMENT
                        stream.send_window += increment
                        window.size -= length
                        stream.held_bytes = length
                        stream.received_bytes = length
                        stream.state = REQUESTED
                        num_whole_left -= 1
                        events.on_request(stream, data[payload:end])
                        index = end
                        if self.is_closed:
                            return index, False
                    continue
            elif (
                frame_type == 8
                and length == 4
                and end <= size
                and self._block_stream_id == 0
                and self._saw_settings
            ):
                # gRPC clients send two of these per answer: as in _on_window_update,
                # for the cases without fault.
                increment = unpack_uint32(data, payload)[0] & LARGEST_WINDOW
                if stream_id == 0:
                    if 0 < increment <= LARGEST_WINDOW - self._send_window:
                        self._send_window += increment
                        self._num_tiny_updates += increment < _TINY_INCREMENT
                        index = end
                        continue
                elif stream_id & 1 and stream_id <= self._last_stream_id:
                    stream = streams.get(stream_id)
                    if stream is None:  # CLOSED or RESET: ignored
                        self._num_tiny_updates += increment < _TINY_INCREMENT
                        index = end
                        continue
                    if 0 < increment <= LARGEST_WINDOW - stream.send_window:
                        stream.send_window += increment
                        self._num_tiny_updates += increment < _TINY_INCREMENT
                        index = end
                        continue
            # Anything else, by the book.
            stream_id &= LARGEST_WINDOW  # without the reserved bit
            self._check(frame_type, flags, stream_id, length)
            if frame_type == FrameType.DATA:
                if flags & PADDED and length and payload >= size:
                    return index, False  # the pad length has not arrived
                index = self._begin_data(data, payload, flags, stream_id, length)
                continue
            if end > size:
                return index, False
            if frame_type in _BLOCK_FRAMES:
                if num_left == 0:
                    return index, True
                num_left -= 1
            self._on_frame(frame_type, flags, stream_id, data[payload:end])
            index = end
            if self.is_closed:
                return index, False

    def _greet(self) -> None:
        """Queues our preface, which is SETTINGS (RFC 9113 section 3.4), once."""
        if self._has_greeted:
            return
        self._has_greeted = True
        limits = self._limits
        self.out.append(
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
                    Setting.INITIAL_WINDOW_SIZE: LARGEST_WINDOW,
                    Setting.MAX_FRAME_SIZE: limits.max_frame_size,
                    Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
                }
            )
        )
        update = self._window.refill()
        if update:
            self.out.append(update)

    def _reject_preface(self, data: bytes) -> NoReturn:
        if data[:1].isalpha() and not PREFACE.startswith(data[:4]):
            self.out.append(response.HTTP_1_ANSWER)
            self.is_closed = True
            raise ConnectionFault(ErrorCode.HTTP_1_1_REQUIRED, "client speaks HTTP/1")
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")

    def _check(self, frame_type: int, flags: int, stream_id: int, length: int) -> None:
        if length > self._limits.max_frame_size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame too large")
        frames.check_head(frame_type, flags, stream_id, length)
        if not self._saw_settings and frame_type != FrameType.SETTINGS:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "SETTINGS must be the first frame"
            )
        if self._block_stream_id and (
            frame_type != FrameType.CONTINUATION or stream_id != self._block_stream_id
        ):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "a header block was left unfinished"
            )
        if (
            frame_type != FrameType.DATA
            and length > self._limits.max_header_list_bytes + 256
        ):
            # Only DATA is taken as it comes; anything else would sit in memory.
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "header or control frame too large"
            )

    def _on_frame(
        self, frame_type: int, flags: int, stream_id: int, payload: bytes
    ) -> None:
        if frame_type == FrameType.HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif frame_type == FrameType.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif frame_type == FrameType.SETTINGS:
            self._on_settings(flags, payload)
        elif frame_type == FrameType.PING:
            self._on_ping(flags, payload)
        elif frame_type == FrameType.RST_STREAM:
            self._on_rst_stream(stream_id)
        elif frame_type == FrameType.CONTINUATION:
            self._on_continuation(flags, stream_id, payload)
        elif frame_type == FrameType.GOAWAY:
            self._annoyed(Annoyance.IGNORED_FRAME)  # it closes when it is done
        elif stream_id:
            self._step(stream_id, received(frame_type, ends_stream=False))
            self._annoyed(
                Annoyance.PRIORITY
                if frame_type == FrameType.PRIORITY
                else Annoyance.IGNORED_FRAME
            )
        else:
            self._annoyed(Annoyance.IGNORED_FRAME)

    # -- HEADERS

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        start, end = 0, len(payload)
        if flags & PADDED:
            if not payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no pad length")
            start = 1
            end -= payload[0]
        if flags & PRIORITIZED:
            if end - start >= 5 and (
                unpack_uint32(payload, start)[0] & LARGEST_WINDOW == stream_id
            ):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "depends on itself")
            start += 5
        if start > end:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding too long")
        block = payload[start:end]
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._on_block(stream_id, block, ends)
            return
        self._block_stream_id = stream_id
        self._block = bytearray(block)
        self._block_ends = ends
        self._block_frames = 0
        self._block_since_s = self._now_s

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block_stream_id:
            self._step(stream_id, Signal.RECEIVE_CONTINUATION)  # always closes
        self._block += payload
        self._block_frames += 1
        if len(payload) < _SMALL_CONTINUATION and not flags & END_HEADERS:
            self._annoyed(Annoyance.SMALL_CONTINUATION)
        if (
            self._block_frames > self._limits.max_continuations
            or len(self._block) > self._limits.max_header_list_bytes + 256
        ):
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "header block too long or too cut up"
            )
        if flags & END_HEADERS:
            block = bytes(self._block)
            self._block_stream_id = 0
            self._block = bytearray()
            self._on_block(stream_id, block, self._block_ends)

    def _on_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "even stream id")
        if stream_id <= self._last_stream_id:
            self._on_late_block(stream_id, block, ends)
            return
        verdict = self._step(stream_id, received(FrameType.HEADERS, ends))
        if stream_id - self._last_stream_id > 2:
            self._skipped_ids = range(self._last_stream_id + 1, stream_id)
        self._last_stream_id = stream_id
        head = self._by_block.get(block)
        if head is None:
            try:
                head = self._cache.decode(block)
            except MalformedHead:
                self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, ends)
                self._annoyed(Annoyance.STREAM_ERROR)
                return
        if stream_id > self._accept_limit:
            self._remember_reset(stream_id)  # GOAWAY told it: never processed
            return
        if (
            len(self.streams) + self.num_cut_off >= self._limits.max_concurrent_streams
            or self.queued_bytes > self._limits.max_queued_bytes
        ):
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM, ends)
            self._annoyed(Annoyance.REFUSED_STREAM)
            return
        stream = self.streams[stream_id] = Stream(
            stream_id, head, verdict.next_state, self._peer.initial_window, self._now_s
        )
        self._events.on_open(stream)
        if ends and stream_id in self.streams:
            if head.content_length:
                self._reset_by_fault(stream_id, ErrorCode.PROTOCOL_ERROR)
            else:
                self._events.on_end(stream)

    def _on_late_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """A second header block: trailers, or a fault; HPACK wants it either way."""
        is_malformed = False
        try:
            self._cache.decode_trailers(block)
        except MalformedHead:
            is_malformed = True
        if stream_id in self._skipped_ids:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream ids must grow")
        stream = self.streams.get(stream_id)
        signal = received(FrameType.HEADERS, ends)
        verdict = self._step(stream_id, signal)
        if verdict.reaction is Reaction.ACCEPT and stream is not None:
            if is_malformed:
                self._reset_by_fault(stream_id, ErrorCode.PROTOCOL_ERROR)
            else:
                self._on_stream_end(stream, signal)
        else:
            self._annoyed(Annoyance.IGNORED_FRAME)

    # -- the rest

    def _on_rst_stream(self, stream_id: int) -> None:
        self.num_resets += 1
        verdict = self._step(stream_id, Signal.RECEIVE_RST_STREAM)
        if verdict.reaction is Reaction.ACCEPT:
            stream = self.streams[stream_id]
            self._drop(stream, verdict.next_state)
            self._events.on_reset(stream)
        self._annoyed(Annoyance.RST_STREAM)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        increment = unpack_uint32(payload)[0] & LARGEST_WINDOW
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self._send_window += increment
            if self._send_window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window overflow")
        else:
            verdict = self._step(stream_id, Signal.RECEIVE_WINDOW_UPDATE)
            if verdict.reaction is Reaction.ACCEPT:
                stream = self.streams[stream_id]
                stream.send_window += increment
                if increment == 0:
                    self._reset_by_fault(stream_id, ErrorCode.PROTOCOL_ERROR)
                elif stream.send_window > LARGEST_WINDOW:
                    self._reset_by_fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if increment < _TINY_INCREMENT:
            self._annoyed(Annoyance.TINY_WINDOW_UPDATE)

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            self._annoyed(Annoyance.IGNORED_FRAME)
            return
        if self._saw_settings:
            self._annoyed(Annoyance.SETTINGS)
        self._saw_settings = True
        moved = self._peer.update(payload)
        if moved:
            for stream in self.streams.values():
                stream.send_window += moved
                if stream.send_window > LARGEST_WINDOW:
                    raise ConnectionFault(
                        ErrorCode.FLOW_CONTROL_ERROR, "window overflow by SETTINGS"
                    )
        self.out.append(frames.SETTINGS_ACK)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if not flags & ACK:
            # Clients measure their bandwidth with a PING after what we send.
            mark = self.num_answered + self._sent_chunks
            if mark == self._ping_mark:
                self._annoyed(Annoyance.PING)
            self._ping_mark = mark
            self.out.append(frames.ping(payload, ack=True))
        elif payload == _DRAIN_PING and self._is_draining:
            self.finish_drain()
        else:
            self._annoyed(Annoyance.IGNORED_FRAME)

    # -- ending streams and the connection ------------------------------------------

    def _refuse(self, stream_id: int, code: ErrorCode, ends: bool) -> None:
        """Resets a stream that never came to be."""
        self.out.append(frames.rst_stream(stream_id, code))
        if not ends:
            self._remember_reset(stream_id)

    def begin_drain(self) -> None:
        """Announces that no new streams are wanted (GOAWAY), in two steps.

        The first GOAWAY accepts everything, because requests may be under way; the
        PING that follows it is answered when the client has seen it, and then
        :meth:`finish_drain` draws the line. The owner calls that too, after a time.
        """
        if self._is_draining or self.is_closed:
            return
        self._is_draining = True
        self._greet()
        self.out.append(frames.goaway(LARGEST_WINDOW, ErrorCode.NO_ERROR, "draining"))
        self.out.append(frames.ping(_DRAIN_PING))

    def finish_drain(self) -> None:
        """Accepts no stream beyond those seen; idempotent."""
        if self.is_closed or self._accept_limit != LARGEST_WINDOW:
            return
        self._accept_limit = self._last_stream_id
        self.out.append(
            frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR, "draining")
        )

    @property
    def is_drained(self) -> bool:
        """Whether the line is drawn and every stream has ended."""
        return self._accept_limit != LARGEST_WINDOW and not self.streams

    def ping(self) -> None:
        """Asks the client for a sign of life."""
        self.out.append(frames.ping(_KEEPALIVE_PING))

    def terminate(self, fault: ConnectionFault) -> None:
        """Ends the connection for ``fault``: GOAWAY, and every stream is gone."""
        if not self.is_closed:
            self._greet()
            self.out.append(
                frames.goaway(self._last_stream_id, fault.code, fault.reason)
            )
        if self.fault is None:
            forget_frames(fault)  # they hold the owner, and this the fault
            self.fault = fault
        self.close()

    def close(self) -> None:
        """Forgets every stream (each brings ``on_reset``) and the window; idempotent.

        Nothing is told afterwards: owner and connection would hold each other, and all
        that they have, until the collector comes by.
        """
        self.is_closed = True
        self._rest = b""
        while self.streams:
            stream = next(iter(self.streams.values()))
            self._drop(stream, StreamState.CLOSED)
            self._events.on_reset(stream)
        self._events = NOBODY
        self._window.close()
