"""Decodes HPACK header blocks (RFC 7541) in a few microseconds.

The ``hpack`` library takes 14 us for a gRPC client's ordinary request headers, twice
what all of a small request costs here. It neither bounds the work nor tells whether its
dynamic table has changed. This decoder does both. The tests compare it with the
library, whose Huffman decoding table it uses.

Only :meth:`HpackDecoder.decode` changes the dynamic table. Its ``generation`` tells
whether it did, so that header blocks can safely be cached.
"""

from __future__ import annotations

from typing import Final

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from tfs.frontends.http2.frames import (
    DEFAULT_TABLE_SIZE,
    ConnectionFault,
    ErrorCode,
)

Header = tuple[bytes, bytes]

ENTRY_OVERHEAD: Final = 32
"""What RFC 7541 section 4.1 adds to the bytes of each header."""

_STATIC: Final[tuple[Header, ...]] = (
    (b"", b""),
    *((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE),
)
_NUM_STATIC: Final = len(_STATIC)  # counting the unused index 0
_MAX_RESIZES: Final = 16  # per block; RFC 7541 section 4.2 needs at most two
_MAX_INTEGER_SIZE: Final = 5  # bytes after the prefix; five reach 2^35
_HUFFMAN_CACHE_SIZE: Final = 128
_HUFFMAN_CACHED_LENGTH: Final = 64


class HpackDecoder:
    """One connection's decoding context. Confined to one thread.

    Attributes:
        generation: Grows with every insertion into the dynamic table and every change of
            its size.
        list_bytes: What the last block expanded to, by RFC 7541's count.
        was_cut: Whether the last block held more header bytes than
            ``max_list_bytes``; the headers beyond were left out of the result.

    Args:
        max_table_bytes: The SETTINGS_HEADER_TABLE_SIZE we announced.
        max_list_bytes: Headers kept per block, by RFC 7541's count.

    """

    __slots__ = (
        "_entries",
        "_huffman",
        "_limit_bytes",
        "_max_list_bytes",
        "_max_table_bytes",
        "_size_bytes",
        "generation",
        "list_bytes",
        "was_cut",
    )

    def __init__(
        self, max_table_bytes: int = 4096, max_list_bytes: int = 16_384
    ) -> None:
        self.generation = 0
        self.list_bytes = 0
        self.was_cut = False
        self._entries: list[Header] = []  # the newest first
        self._size_bytes = 0
        # What the peer chose to use. It begins with the default, whatever we announce.
        self._limit_bytes = min(max_table_bytes, DEFAULT_TABLE_SIZE)
        self._max_table_bytes = max_table_bytes
        self._max_list_bytes = max_list_bytes
        self._huffman: dict[bytes, bytes] = {}

    @property
    def table_bytes(self) -> int:
        """The size of the dynamic table, by RFC 7541's count."""
        return self._size_bytes

    def decode(self, block: bytes) -> list[Header]:
        """Returns the headers of one whole block, in order.

        Work and memory are bounded by the block's size and ``max_list_bytes``.

        Raises:
            ConnectionFault: COMPRESSION_ERROR for anything RFC 7541 forbids,
                ENHANCE_YOUR_CALM for a block that expands beyond eight times
                ``max_list_bytes``, or is all table size updates. The decoder is of no
                further use.

        """
        headers: list[Header] = []
        self.was_cut = False
        left = self._max_list_bytes
        index = 0
        size = len(block)
        saw_header = False
        num_resizes = 0
        entries = self._entries
        try:
            while index < size:
                first = block[index]
                if first & 0x80:  # indexed
                    key = first & 0x7F
                    index += 1
                    if key == 0x7F:
                        key, index = _integer(block, index, key)
                    if 0 < key < _NUM_STATIC:
                        header = _STATIC[key]
                    elif key:
                        header = entries[key - _NUM_STATIC]
                    else:
                        raise _fault("index 0")
                elif first & 0xE0 == 0x20:  # size update
                    if saw_header:
                        raise _fault("table size update after a header")
                    limit, index = first & 0x1F, index + 1
                    if limit == 0x1F:
                        limit, index = _integer(block, index, limit)
                    self._resize(limit)
                    num_resizes += 1
                    if num_resizes > _MAX_RESIZES:
                        raise ConnectionFault(
                            ErrorCode.ENHANCE_YOUR_CALM, "too many table size updates"
                        )
                    continue
                else:  # literal
                    mask = 0x3F if first & 0x40 else 0x0F
                    key = first & mask
                    index += 1
                    if key == mask:
                        key, index = _integer(block, index, key)
                    if not key:
                        name, index = self._string(block, index)
                    elif key < _NUM_STATIC:
                        name = _STATIC[key][0]
                    else:
                        name = entries[key - _NUM_STATIC][0]
                    value, index = self._string(block, index)
                    header = (name, value)
                    if mask == 0x3F:
                        self._insert(header)
                saw_header = True
                left -= len(header[0]) + len(header[1]) + ENTRY_OVERHEAD
                if left >= 0:
                    headers.append(header)
                else:
                    self.was_cut = True
                    if left < -7 * self._max_list_bytes:
                        raise ConnectionFault(
                            ErrorCode.ENHANCE_YOUR_CALM, "header block expands too far"
                        )
        except IndexError:
            raise _fault("truncated block or unknown index") from None
        except HPACKError:
            raise _fault("bad Huffman code") from None
        self.list_bytes = self._max_list_bytes - left
        return headers

    def _string(self, block: bytes, index: int) -> tuple[bytes, int]:
        first = block[index]
        length = first & 0x7F
        index += 1
        if length == 0x7F:
            length, index = _integer(block, index, length)
        end = index + length
        if end > len(block):
            raise _fault("truncated string")
        text = block[index:end]
        if first & 0x80:
            decoded = self._huffman.get(text)
            if decoded is None:
                decoded = bytes(decode_huffman(text))
                if length <= _HUFFMAN_CACHED_LENGTH:
                    if len(self._huffman) >= _HUFFMAN_CACHE_SIZE:
                        self._huffman.clear()
                    self._huffman[text] = decoded
            return decoded, end
        return text, end

    def _insert(self, header: Header) -> None:
        self.generation += 1
        needed = len(header[0]) + len(header[1]) + ENTRY_OVERHEAD
        self._evict(self._limit_bytes - needed)
        if needed <= self._limit_bytes:
            self._entries.insert(0, header)
            self._size_bytes += needed

    def _resize(self, limit_bytes: int) -> None:
        if limit_bytes > self._max_table_bytes:
            raise _fault("table size beyond the setting")
        if limit_bytes != self._limit_bytes:
            self.generation += 1
            self._limit_bytes = limit_bytes
            self._evict(limit_bytes)

    def _evict(self, limit_bytes: int) -> None:
        entries = self._entries
        while entries and self._size_bytes > limit_bytes:
            name, value = entries.pop()
            self._size_bytes -= len(name) + len(value) + ENTRY_OVERHEAD


def _integer(block: bytes, index: int, value: int) -> tuple[int, int]:
    """Returns the integer whose full prefix was ``value``, and the index behind it."""
    shift = 0
    for _ in range(_MAX_INTEGER_SIZE):
        byte = block[index]
        index += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index
        shift += 7
    raise _fault("integer too long")


def _fault(reason: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"HPACK: {reason}")


def encode_literal(name: bytes, value: bytes) -> bytes:
    """Returns one header as a literal that enters nobody's dynamic table."""
    return b"\x00" + _encode_string(name) + _encode_string(value)


def _encode_string(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    size = bytearray(b"\x7f")
    length -= 0x7F
    while length >= 0x80:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes(size) + text
