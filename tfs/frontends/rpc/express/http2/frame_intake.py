"""Takes in every frame but DATA: checks it against states and limits, and acts on it.

There is one method per frame type. Frames that are neither an error nor of any use
still cost the client points (:mod:`~tfs.frontends.rpc.express.http2.patience`), so that
nothing is free.
"""

from __future__ import annotations

import abc
from typing import Final

from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.http2.connection_context import ConnectionContext
from tfs.frontends.rpc.express.http2.header_block import (
    MAX_LARGE_BLOCKS,
    HeaderBlock,
    block_too_long,
)
from tfs.frontends.rpc.express.http2.patience import Annoyance
from tfs.frontends.rpc.express.http2.request_opening import RequestOpening
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_intake import LARGE_REQUEST, StreamIntake
from tfs.frontends.rpc.express.http2.stream_state import (
    OPENED,
    Reaction,
    Signal,
    received,
)
from tfs.frontends.rpc.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    LARGEST_WINDOW,
    PADDED,
    PRIORITIZED,
    ConnectionFault,
    ErrorCode,
    FrameType,
    first_piece,
    unpack_uint32,
)
from tfs.frontends.rpc.heads.head_cache import HeadCache
from tfs.frontends.rpc.heads.hpack_decoder import HpackDecoder
from tfs.frontends.rpc.heads.request_head import MalformedHead, parse_head

BLOCK_FRAMES: Final = frozenset((FrameType.HEADERS, FrameType.CONTINUATION))

TINY_INCREMENT: Final = 64
"""A WINDOW_UPDATE by fewer bytes counts as tiny: it is worth next to nothing."""

_SMALL_CONTINUATION: Final = 512

_ABOUT_S: Final = 0.1
"""Seconds by which a client's clock may be ahead of ours. A busy client may send a
request and its RST_STREAM in one go."""

_LONG_S: Final = 1.0
"""A client that resets a stream after waiting this many seconds does not flood us."""

# Longer heads count against the receive budget, unless the cache shares them. With
# HPACK a few bytes may stand for a long head, and each of a thousand streams may have
# its own.
_LONG_HEAD_BYTES: Final = 1024
_METADATA_BYTES: Final = 160  # memory of a header's objects, besides its bytes


class FrameIntake(StreamIntake, abc.ABC):
    """Carries out the frames of a connection, one by one. Confined to the serving loop.

    A base of :class:`~tfs.frontends.rpc.express.http2.connection.Connection`; its own
    base handles DATA. The layers above decide which frame is next, and how many are
    taken.

    Attributes:
        num_cut_off: Calls that ended early and whose work still runs. They count
            against ``max_concurrent_streams``. The owner keeps the number up to date.
        num_resets: How many streams the peer has reset.

    Args:
        context: The events, budget, limits and buffers that it uses.

    """

    __slots__ = (
        "_block",
        "_cache",
        "_has_large_block",
        "_heads",
        "_openings",
        "_ping_mark",
        "_saw_settings",
        "num_cut_off",
        "num_resets",
    )

    def __init__(self, context: ConnectionContext) -> None:
        super().__init__(context)
        self.num_cut_off = 0
        self.num_resets = 0
        limits = context.limits
        self._block = HeaderBlock(limits, context.begun_s)
        self._openings: dict[bytes, RequestOpening] = {}
        self._cache = HeadCache(
            HpackDecoder(max_list_bytes=limits.max_header_list_bytes),
            parse_head,
            self._openings.clear,
        )
        self._heads = self._cache.by_block
        self._has_large_block = False
        self._saw_settings = False
        self._ping_mark = -1

    @abc.abstractmethod
    def _on_pong(self, payload: bytes) -> None:
        """The peer answers a PING."""

    def _check_head(
        self, frame_type: int, flags: int, stream_id: int, length: int
    ) -> None:
        """Checks what a frame's head says, before the payload has arrived.

        Raises:
            ConnectionFault: It is too long, malformed, or out of order.

        """
        if length > self._limits.max_frame_size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame too large")
        frames.check_head(frame_type, flags, stream_id, length)
        if not self._saw_settings and frame_type != FrameType.SETTINGS:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "SETTINGS must be the first frame"
            )
        block_id = self._block.stream_id
        if block_id and (frame_type != FrameType.CONTINUATION or stream_id != block_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "a header block was left unfinished"
            )
        if (
            frame_type != FrameType.DATA
            and length > self._block.small_bytes
            and not (frame_type in BLOCK_FRAMES and self._has_room_for_block(length))
        ):
            # Only DATA is taken as it arrives. Any other frame would wait in memory
            # until it is whole.
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "header or control frame too large"
            )

    def _has_room_for_block(self, size_bytes: int) -> bool:
        """Tells whether a header block may be large, and takes a place for it if so.

        The call of such a block is refused. The other calls of the connection must go
        on, because the client may be a proxy. So the block has to be decoded all the
        same, which keeps HPACK's table in step; a server does so for a limited number
        of blocks at a time.
        """
        if size_bytes > self._block.large_bytes:
            return False
        if not self._has_large_block:
            if self._budget.num_large_blocks >= MAX_LARGE_BLOCKS:
                return False
            self._annoyed(Annoyance.LARGE_BLOCK)
            self._budget.num_large_blocks += 1
            self._has_large_block = True
        return True

    def _forget_large_block(self) -> None:
        """Gives back the place that a large header block took, if one did."""
        if self._has_large_block:
            self._has_large_block = False
            self._budget.num_large_blocks -= 1

    def _on_frame(
        self, frame_type: int, flags: int, stream_id: int, payload: bytes
    ) -> None:
        """Takes a whole frame that is not DATA, and whose head was checked."""
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
            # The client closes the connection when its calls are done.
            self._annoyed(Annoyance.IGNORED_FRAME)
        elif stream_id:
            self._step(stream_id, received(frame_type, ends_stream=False))
            self._annoyed(
                Annoyance.PRIORITY
                if frame_type == FrameType.PRIORITY
                else Annoyance.IGNORED_FRAME
            )
        else:
            self._annoyed(Annoyance.IGNORED_FRAME)

    # -- header blocks ----------------------------------------------------------------

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        piece = payload
        if flags & (PADDED | PRIORITIZED):
            piece = first_piece(flags, stream_id, payload)
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._on_block(stream_id, piece, ends)
        else:
            self._block.begin(stream_id, piece, ends, self._now_s)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if not block.stream_id:
            self._step(stream_id, Signal.RECEIVE_CONTINUATION)  # always closes
        size_bytes = block.size_bytes + len(payload)
        if size_bytes > block.small_bytes and not self._has_room_for_block(size_bytes):
            raise block_too_long()
        block.append(payload)
        if flags & END_HEADERS:
            self._on_block(stream_id, block.take(), block.ends_stream)
        elif len(payload) < _SMALL_CONTINUATION:
            self._annoyed(Annoyance.SMALL_CONTINUATION)

    def _on_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        if self._has_large_block:
            self._forget_large_block()
        table = self._table
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "even stream id")
        if stream_id <= table.last_id:
            self._on_late_block(stream_id, block, ends)
            return
        verdict = self._step(stream_id, received(FrameType.HEADERS, ends))
        table.advance_to(stream_id)
        head = self._heads.get(block)
        num_bytes = 0
        if head is None:
            try:
                head = self._cache.decode(block)
            except MalformedHead:
                self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, ends)
                self._annoyed(Annoyance.STREAM_ERROR)
                return
            num_bytes = self._cache.list_bytes
            if num_bytes > _LONG_HEAD_BYTES:
                num_bytes += len(head.metadata) * _METADATA_BYTES
            else:
                num_bytes = 0
        if stream_id > table.last_accepted_id:
            table.remember_reset(stream_id)  # never processed, as our GOAWAY said
        elif (
            len(self.streams) + self.num_cut_off >= self._limits.max_concurrent_streams
            or len(self.streams) >= self._budget.max_streams_each
            or self.is_overfull
            or num_bytes > self._budget.free_to_all_bytes
        ):
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM, ends)
            # Its client cannot know any limit but the announced one.
            is_excess = len(self.streams) >= self._limits.max_concurrent_streams
            self._annoyed(Annoyance.REFUSED_STREAM if is_excess else Annoyance.NO_ROOM)
        else:
            stream = self.streams[stream_id] = Stream(
                stream_id,
                head,
                verdict.next_state,
                self._peer.initial_window,
                self._now_s,
            )
            self._events.on_open(stream)
            if stream_id in self.streams:
                self._on_opened(stream, num_bytes, ends)

    def _on_opened(self, stream: Stream, num_head_bytes: int, ends: bool) -> None:
        """Continues a stream that was neither answered nor reset at once."""
        self._budget.used_bytes += num_head_bytes
        stream.held_bytes += num_head_bytes
        if ends:
            if stream.head.content_length:
                self._reset_by_fault(stream.id, ErrorCode.PROTOCOL_ERROR)
            else:
                self._events.on_end(stream)

    def _on_late_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Takes a stream's second header block, which is trailers or a fault."""
        is_malformed = False
        try:
            self._cache.decode_trailers(block)
        except MalformedHead:
            is_malformed = True
        if self._table.was_skipped(stream_id):
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

    def _refuse(self, stream_id: int, code: ErrorCode, ends: bool) -> None:
        """Resets a stream that was never opened."""
        self.out.append(frames.rst_stream(stream_id, code))
        if not ends:
            self._table.remember_reset(stream_id)

    # -- the rest -----------------------------------------------------------------------

    def _on_rst_stream(self, stream_id: int) -> None:
        self.num_resets += 1
        verdict = self._step(stream_id, Signal.RECEIVE_RST_STREAM)
        if verdict.reaction is Reaction.ACCEPT:
            stream = self.streams[stream_id]
            if stream.received_bytes >= LARGE_REQUEST and stream.state is OPENED:
                self.num_given_up += 1
            self._drop(stream, verdict.next_state)
            self._events.on_reset(stream)
            allowed_s = stream.head.timeout_s
            if allowed_s is None or allowed_s > _LONG_S:
                allowed_s = _LONG_S
            if stream.opened_s + allowed_s <= self._now_s + _ABOUT_S:
                return  # it is past its deadline or was open for long: no flood
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
        if increment < TINY_INCREMENT:
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
        if flags & ACK:
            self._on_pong(payload)
            return
        # Clients measure their bandwidth by a PING after data that we sent; those are
        # not charged.
        mark = self.num_answered + self._sent_chunks
        if mark == self._ping_mark:
            self._annoyed(Annoyance.PING)
        self._ping_mark = mark
        self.out.append(frames.ping(payload, ack=True))
