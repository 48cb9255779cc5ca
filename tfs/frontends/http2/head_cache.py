"""A connection's header blocks, decoded and checked once.

gRPC clients repeat the same few header blocks on a connection, so most requests need
one dictionary look-up instead of HPACK. That is sound only as long as equal bytes mean
equal headers. So a block is kept only if decoding it left the dynamic table unchanged,
and any change of the table (insertion, eviction, size update) empties the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tfs.frontends.http2.hpack_decoder import Header, HpackDecoder
from tfs.frontends.http2.request_head import check_trailers

Head = TypeVar("Head")


class HeadCache(Generic[Head]):
    """What a transport makes of heads, by their header blocks. Confined to one thread.

    Attributes:
        by_block: The blocks that may be looked up instead of decoded; a reader
            that misses calls :meth:`decode`.
        num_decoded: How many heads were not found there, and were decoded.

    Args:
        decoder: The connection's.
        read: Makes a head of a block's headers; told also whether they were cut. What
            it raises is passed on, and nothing is kept.
        on_clear: Called when blocks may mean something else from now on.
        max_bytes: How many bytes may be kept, blocks and their headers together.

    """

    __slots__ = (
        "_decoder",
        "_max_bytes",
        "_on_clear",
        "_read",
        "_size_bytes",
        "by_block",
        "num_decoded",
    )

    def __init__(
        self,
        decoder: HpackDecoder,
        read: Callable[[list[Header], bool], Head],
        on_clear: Callable[[], object] = lambda: None,
        max_bytes: int = 65_536,
    ) -> None:
        self.by_block: dict[bytes, Head] = {}
        self.num_decoded = 0
        self._decoder = decoder
        self._read = read
        self._on_clear = on_clear
        self._max_bytes = max_bytes
        self._size_bytes = 0

    def decode(self, block: bytes) -> Head:
        """Returns the head in ``block``, which was not found in ``by_block``.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.
            MalformedHead: Only the stream is at fault; the table is in step. So it is
                with anything else that ``read`` raises.

        """
        self.num_decoded += 1
        decoder = self._decoder
        generation = decoder.generation
        headers = decoder.decode(block)
        changed = decoder.generation != generation
        if changed:
            self._clear()
        head = self._read(headers, decoder.was_cut)
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

    def decode_trailers(self, block: bytes) -> None:
        """Decodes a block that nobody reads, to check it and keep the table in step.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.
            MalformedHead: It is no trailers; the table is in step.

        """
        check_trailers(self._skip(block))

    def skip(self, block: bytes) -> None:
        """Decodes a block that is of no use, to keep the table in step.

        Raises:
            ConnectionFault: HPACK broke; the connection must close.

        """
        self._skip(block)

    def _skip(self, block: bytes) -> list[Header]:
        generation = self._decoder.generation
        headers = self._decoder.decode(block)
        if self._decoder.generation != generation:
            self._clear()
        return headers

    def _clear(self) -> None:
        self.by_block.clear()
        self._size_bytes = 0
        self._on_clear()
