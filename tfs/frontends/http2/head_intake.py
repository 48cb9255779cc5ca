"""Takes in header blocks: requests that begin, and trailers."""

from __future__ import annotations

from typing import Final

from tfs.frontends.budget import used_up
from tfs.frontends.http2 import frames
from tfs.frontends.http2.data_intake import DataIntake
from tfs.frontends.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PRIORITIZED,
    ConnectionFault,
    ErrorCode,
    FrameType,
    first_piece,
)
from tfs.frontends.http2.head_cache import HeadCache
from tfs.frontends.http2.header_block import HeaderBlock, block_too_long
from tfs.frontends.http2.hpack_decoder import HpackDecoder
from tfs.frontends.http2.request_head import MalformedHead, RequestHead, parse_head
from tfs.frontends.http2.state import ConnectionState
from tfs.frontends.http2.states import Reaction, Signal, Step, received
from tfs.frontends.http2.stream import Stream

_SMALL_CONTINUATION: Final = 512

# Longer heads count, unless the cache shares them. With HPACK a few bytes may stand for
# a long head, and each of a thousand streams may have its own.
_LONG_HEAD_BYTES: Final = 1024
_METADATA_BYTES: Final = 160  # memory of a header's objects, besides its bytes


class HeadIntake:
    """The header blocks of one connection. Confined to the serving loop.

    Attributes:
        block: The block that is not whole, if there is one.
        heads: The heads that need not be decoded, by their blocks.

    Args:
        state: The connection's.
        data: Is told of requests that end with trailers.

    """

    __slots__ = ("_block_bytes", "_cache", "_data", "_state", "block", "heads")

    def __init__(self, state: ConnectionState, data: DataIntake) -> None:
        limits = state.limits
        self._state = state
        self._data = data
        self.block = HeaderBlock(limits, state.now_s)
        self._block_bytes = 0  # of an unfinished block, in the budget
        self._cache: HeadCache[RequestHead] = HeadCache(
            HpackDecoder(max_list_bytes=limits.max_header_list_bytes), parse_head
        )
        self.heads = self._cache.by_block

    @property
    def num_decoded(self) -> int:
        """How many request heads were not in the cache of header blocks."""
        return self._cache.num_decoded

    def make_room(self, size_bytes: int) -> None:
        """Makes room for a header block that is not whole, or longer than any head.

        The call of a longer one is refused. The other calls of the connection must go
        on, because the client may be a proxy. So the block has to be decoded all the
        same, which keeps HPACK's table in step.

        Raises:
            ConnectionFault: It is too long even so, or the budget has no room for it.

        """
        budget = self._state.budget
        more_bytes = size_bytes - self._block_bytes
        if more_bytes <= 0:
            return
        if size_bytes > self.block.large_bytes or not budget.has_room(more_bytes):
            raise block_too_long()
        if self._block_bytes <= self.block.small_bytes < size_bytes:
            self._state.count_nuisance("large header blocks", 50)
        budget.used_bytes += more_bytes
        self._block_bytes = size_bytes

    def forget(self) -> None:
        """Gives back what an unfinished block counts."""
        num_bytes, self._block_bytes = self._block_bytes, 0
        if num_bytes:
            self._state.budget.release(num_bytes)

    def on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Takes a HEADERS frame."""
        piece = payload
        if flags & (PADDED | PRIORITIZED):
            piece = first_piece(flags, stream_id, payload)
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._on_block(stream_id, piece, ends)
        else:
            self.make_room(len(piece))
            self.block.begin(stream_id, piece, ends, self._state.now_s)

    def on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Takes a CONTINUATION frame."""
        block = self.block
        if not block.stream_id:
            self._state.step(stream_id, Signal.RECEIVE_CONTINUATION)  # always closes
        self.make_room(block.size_bytes + len(payload))
        block.append(payload)
        if flags & END_HEADERS:
            self._on_block(stream_id, block.take(), block.ends_stream)
        elif len(payload) < _SMALL_CONTINUATION:
            self._state.count_nuisance("small CONTINUATION", 20)

    def _on_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        self.forget()
        state, table = self._state, self._state.table
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "even stream id")
        if stream_id <= table.last_id:
            self._on_late_block(stream_id, block, ends)
            return
        verdict = state.step(stream_id, received(FrameType.HEADERS, ends))
        table.advance_to(stream_id)
        head = self.heads.get(block)
        num_bytes = 0
        if head is None:
            try:
                head = self._cache.decode(block)
            except MalformedHead:
                self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, ends)
                state.count_nuisance("stream errors", 10)
                return
            if self._cache.list_bytes > _LONG_HEAD_BYTES:
                num_bytes = self._cache.list_bytes
                num_bytes += len(head.metadata) * _METADATA_BYTES
        if stream_id > table.last_accepted_id:
            table.remember_reset(stream_id)  # never processed, as our GOAWAY said
            return
        num_streams = len(state.streams) + state.num_cut_off
        if num_streams >= state.limits.max_concurrent_streams:
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM, ends)
            state.count_nuisance("refused streams", 2)
        else:
            self._open(stream_id, head, verdict, num_bytes, ends)

    def _open(
        self,
        stream_id: int,
        head: RequestHead,
        verdict: Step,
        num_head_bytes: int,
        ends: bool,
    ) -> None:
        """Opens a stream; answers at once that there is no room, if so."""
        state = self._state
        stream = Stream(
            stream_id,
            head,
            verdict.next_state,
            state.sender.peer.initial_window,
            state.now_s,
        )
        state.streams[stream_id] = stream
        stream.held_bytes += num_head_bytes
        # A connection's only stream is counted with it, so that who has one request at a
        # time is served beside those who take all that there is.
        has_room = len(state.streams) == 1 or state.budget.has_room(stream.held_bytes)
        state.budget.used_bytes += stream.held_bytes
        state.events.on_open(stream)
        if stream_id not in state.streams:
            return  # it was answered or reset at once
        if not has_room:
            state.events.on_fault(stream, used_up())
            state.count_nuisance("streams that there is no room for")
        elif ends:
            if head.content_length:
                state.reset_by_fault(stream_id, ErrorCode.PROTOCOL_ERROR)
            else:
                state.events.on_end(stream)

    def _on_late_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Takes a stream's second header block, which is trailers or a fault."""
        state = self._state
        is_malformed = False
        try:
            self._cache.decode_trailers(block)
        except MalformedHead:
            is_malformed = True
        if state.table.was_skipped(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream ids must grow")
        stream = state.streams.get(stream_id)
        signal = received(FrameType.HEADERS, ends)
        verdict = state.step(stream_id, signal)
        if verdict.reaction is not Reaction.ACCEPT or stream is None:
            state.count_nuisance("ignored frames")
        elif is_malformed:
            state.reset_by_fault(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            self._data.end(stream, signal)

    def _refuse(self, stream_id: int, code: ErrorCode, ends: bool) -> None:
        """Resets a stream that was never opened."""
        self._state.sender.out.append(frames.rst_stream(stream_id, code))
        if not ends:
            self._state.table.remember_reset(stream_id)
