"""Takes in header blocks: requests that begin, and trailers.

gRPC clients repeat the same few header blocks on a connection, so most requests need
one dictionary look-up instead of HPACK. That is sound only as long as equal bytes mean
equal headers. So a block is kept only if decoding it left the dynamic table unchanged,
and any change of the table (insertion, eviction, size update) empties the cache.

The pieces of a block are joined before HPACK decodes any of them. Since no other frame may
come between them (RFC 9113, section 6.10), one block per connection waits, and its size is
bounded.
"""

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
    first_piece,
)
from tfs.frontends.http2.hpack_decoder import Header, HpackDecoder
from tfs.frontends.http2.request_head import (
    MalformedHead,
    RequestHead,
    check_trailers,
    parse_head,
)
from tfs.frontends.http2.state import ConnectionState
from tfs.frontends.http2.stream import Reaction, Signal, Stream, StreamState

_CACHE_BYTES: Final = 65_536  # of blocks and the heads that they stand for

# Longer heads count, unless the cache shares them. With HPACK a few bytes may stand for
# a long head, and each of a thousand streams may have its own.
_LONG_HEAD_BYTES: Final = 1024
_METADATA_BYTES: Final = 160  # memory of a header's objects, besides its bytes

_SLACK_BYTES: Final = 256
"""Bytes by which a header block may exceed its header list, for padding, priority and
table size updates."""

_LARGEST_TIMES: Final = 4
"""A block may be this many times as long as the longest header list that we take. Envoy
forwards 60 KB, and clients' libraries ignore the limit that we announce."""

_BLOCK_BYTES_PER_REQUEST: Final = 256
"""Bytes of a block that take as long to decode as a request: 0.2 us each, if they are
Huffman-coded."""


class HeadIntake:
    """The header blocks of one connection. Confined to the serving loop.

    Attributes:
        heads: The heads that need not be decoded, by their blocks.
        largest_bytes: A longer block ends the connection.
        num_decoded: How many request heads were not found there, and were decoded.
        since_s: When the first piece of an unfinished block arrived.
        stream_id: The stream that this opens or ends; 0: no block is unfinished.

    Args:
        state: The connection's.
        data: Is told of requests that end with trailers.

    """

    __slots__ = (
        "_data",
        "_decoder",
        "_ends_stream",
        "_kept_bytes",
        "_num_continuations",
        "_pieces",
        "_state",
        "heads",
        "largest_bytes",
        "num_decoded",
        "since_s",
        "stream_id",
    )

    def __init__(self, state: ConnectionState, data: DataIntake) -> None:
        max_list_bytes = state.limits.max_header_list_bytes
        self.heads: dict[bytes, RequestHead] = {}
        self.largest_bytes = max_list_bytes * _LARGEST_TIMES + _SLACK_BYTES
        self.num_decoded = 0
        self.since_s = state.now_s
        self.stream_id = 0
        self._state = state
        self._data = data
        self._decoder = HpackDecoder(max_list_bytes=max_list_bytes)
        self._kept_bytes = 0  # of heads
        self._pieces = bytearray()
        self._ends_stream = False
        self._num_continuations = 0

    @property
    def unfinished_bytes(self) -> int:
        """How many bytes of an unfinished block have arrived."""
        return len(self._pieces)

    def on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Takes a HEADERS frame."""
        piece = payload
        if flags & (PADDED | PRIORITIZED):
            piece = first_piece(flags, stream_id, payload)
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._on_block(stream_id, piece, ends)
            return
        self.stream_id = stream_id
        self.since_s = self._state.now_s
        self._ends_stream = ends
        self._num_continuations = 0
        self._add(piece)

    def on_continuation(self, flags: int, payload: bytes) -> None:
        """Takes a CONTINUATION frame of the block that is unfinished."""
        self._num_continuations += 1
        if self._num_continuations > self._state.limits.max_continuations:
            raise _too_long()
        self._add(payload)
        if flags & END_HEADERS:
            stream_id, block = self.stream_id, bytes(self._pieces)
            self.forget()
            self._on_block(stream_id, block, self._ends_stream)

    def forget(self) -> None:
        """Forgets an unfinished block, and gives back what it counts."""
        self._state.budget.release(len(self._pieces))
        self._pieces.clear()
        self.stream_id = 0

    def _add(self, piece: bytes) -> None:
        """Keeps a piece of a block that is not whole.

        The call of a block that is longer than any head is refused. The other calls of
        the connection must go on, because the client may be a proxy. So the block has to
        be decoded all the same, which keeps HPACK's table in step.

        Raises:
            ConnectionFault: It is too long even so, or the budget has no room for it.

        """
        budget = self._state.budget
        size_bytes = len(self._pieces) + len(piece)
        if size_bytes > self.largest_bytes or not budget.has_room(len(piece)):
            raise _too_long()
        budget.used_bytes += len(piece)
        self._pieces += piece

    def _on_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        state, table = self._state, self._state.table
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "even stream id")
        if stream_id <= table.last_id:
            self._on_late_block(stream_id, block, ends)
            return
        table.last_id = stream_id
        head = self.heads.get(block)
        num_bytes = 0
        if head is None:
            try:
                head = self._decode(block)
            except MalformedHead:
                self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, ends)
                state.count_nuisance("stream errors", 10)
                return
            num_bytes = self._decoder.list_bytes
            if num_bytes > _LONG_HEAD_BYTES:
                num_bytes += len(head.metadata) * _METADATA_BYTES
            else:
                num_bytes = 0
        if stream_id > table.last_accepted_id:
            table.remember_reset(stream_id)  # never processed, as our GOAWAY said
            return
        num_streams = len(state.streams) + state.num_cut_off
        if num_streams >= state.limits.max_concurrent_streams:
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM, ends)
            state.count_nuisance("refused streams", 2)
        else:
            self._open(stream_id, head, num_bytes, ends)

    def _decode(self, block: bytes) -> RequestHead:
        """Returns the head in a block that is not known.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.
            MalformedHead: Only the stream is at fault; the table is in step.

        """
        self.num_decoded += 1
        generation = self._decoder.generation
        headers = self._headers(block)
        head = parse_head(headers, self._decoder.was_cut)
        if self._decoder.generation == generation:
            num_bytes = len(block) + self._decoder.list_bytes
            if self._kept_bytes + num_bytes > _CACHE_BYTES:
                self._empty_cache()
            if num_bytes <= _CACHE_BYTES:
                self.heads[block] = head
                self._kept_bytes += num_bytes
        return head

    def _headers(self, block: bytes) -> list[Header]:
        self._state.count_work(len(block) // _BLOCK_BYTES_PER_REQUEST)
        generation = self._decoder.generation
        headers = self._decoder.decode(block)
        if self._decoder.generation != generation:
            self._empty_cache()
        return headers

    def _empty_cache(self) -> None:
        self.heads.clear()
        self._kept_bytes = 0

    def _open(
        self, stream_id: int, head: RequestHead, num_head_bytes: int, ends: bool
    ) -> None:
        """Opens a stream; answers at once that there is no room, if so."""
        state = self._state
        stream_state = StreamState.REQUESTED if ends else StreamState.OPEN
        window = state.sender.initial_window
        stream = Stream(stream_id, head, stream_state, window, state.now_s)
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
            check_trailers(self._headers(block))
        except MalformedHead:
            is_malformed = True
        stream = state.streams.get(stream_id)
        verdict = state.step(stream_id, Signal.HEADERS_END if ends else Signal.HEADERS)
        if verdict.reaction is not Reaction.ACCEPT or stream is None:
            state.count_nuisance("ignored frames")
        elif is_malformed:
            state.reset_by_fault(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            self._data.end(stream)

    def _refuse(self, stream_id: int, code: ErrorCode, ends: bool) -> None:
        """Resets a stream that was never opened."""
        self._state.sender.out.append(frames.rst_stream(stream_id, code))
        if not ends:
            self._state.table.remember_reset(stream_id)


def _too_long() -> ConnectionFault:
    return ConnectionFault(
        ErrorCode.ENHANCE_YOUR_CALM, "header block too long or too cut up"
    )
