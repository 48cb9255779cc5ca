"""A connection's header blocks, decoded and checked once.

gRPC clients repeat the same few header blocks on a connection, so most requests need
one dictionary look-up instead of HPACK. That is sound only as long as equal bytes mean
equal headers. So a block is kept only if decoding it left the dynamic table unchanged,
and any change of the table (insertion, eviction, size update) empties the cache.
"""

from __future__ import annotations

from typing import Final

from tfs.frontends.rpc.express.http2.hpack_decoder import HpackDecoder
from tfs.frontends.rpc.express.http2.request_head import (
    RequestHead,
    check_trailers,
    parse_head,
)
from tfs.frontends.rpc.express.http2.request_opening import RequestOpening

# Longest block for which an opening is kept, which holds a second copy of the block.
# Longer ones are rare.
_MAX_OPENING_BYTES: Final = 256


class HeadCache:
    """Request heads by their header blocks. Confined to the serving loop.

    Attributes:
        by_block: The blocks that may be looked up instead of decoded; a reader
            that misses calls :meth:`decode`.
        openings: How requests begin with some of these blocks.
        num_decoded: How many heads were not found there, and were decoded.

    """

    __slots__ = (
        "_decoder",
        "_max_bytes",
        "_size_bytes",
        "by_block",
        "num_decoded",
        "openings",
    )

    def __init__(self, decoder: HpackDecoder, max_bytes: int = 65_536) -> None:
        self.by_block: dict[bytes, RequestHead] = {}
        self.openings: dict[bytes, RequestOpening] = {}
        self.num_decoded = 0
        self._decoder = decoder
        self._max_bytes = max_bytes  # blocks and their headers together
        self._size_bytes = 0

    def decode(self, block: bytes) -> RequestHead:
        """Returns the head in ``block``, which was not found in ``by_block``.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.
            MalformedHead: Only the stream is at fault; the table is in step.

        """
        self.num_decoded += 1
        decoder = self._decoder
        generation = decoder.generation
        headers = decoder.decode(block)
        changed = decoder.generation != generation
        if changed:
            self._clear()
        head = parse_head(headers, decoder.was_cut)
        if not changed:
            weight = len(block) + decoder.list_bytes
            if self._size_bytes + weight > self._max_bytes:
                self._clear()
            if weight <= self._max_bytes:
                self.by_block[block] = head
                self._size_bytes += weight
        return head

    @property
    def list_bytes(self) -> int:
        """What the last block decoded expanded to, by RFC 7541's count."""
        return self._decoder.list_bytes

    def note_opening(self, opening: RequestOpening | None) -> None:
        """Keeps how requests with a kept block begin; does nothing with None."""
        if opening is not None and len(opening.block) <= _MAX_OPENING_BYTES:
            self.openings[opening.block] = opening

    def decode_trailers(self, block: bytes) -> None:
        """Decodes a block that nobody reads, to check it and keep the table in step.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.
            MalformedHead: It is no trailers; the table is in step.

        """
        generation = self._decoder.generation
        headers = self._decoder.decode(block)
        if self._decoder.generation != generation:
            self._clear()
        check_trailers(headers)

    def _clear(self) -> None:
        self.by_block.clear()
        self.openings.clear()
        self._size_bytes = 0
