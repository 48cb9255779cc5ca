"""Decompresses messages into memory that grows with what they really contain.

A message may unpack to a thousand times its size. One of more than a megabyte is unpacked
piece by piece into pages of its own. These go back to the system with the message
instead of staying in the heap. If a message expands suspiciously far, its whole output
is counted before any of it is kept, so one beyond the limit is never in memory. The
limit is lower for such messages, because they cost their sender nothing. Rejected:
trusting the length at the end of a gzip stream, which a client may choose freely.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from tfs.core.errors import Internal, ResourceExhausted, ServingError
from tfs.frontends.encoding import Encoding
from tfs.frontends.mapped_pages import map_pages, page_supply

# zlib's codes for each container with the largest window. gRPC's deflate is zlib's
# format.
_WINDOWS: Final = {Encoding.GZIP: 31, Encoding.DEFLATE: 15}
_SMALL_BYTES: Final = 1 << 20
# With a bound on its output, zlib copies the input that it has not used. So input is
# passed in slices.
_INPUT_BYTES: Final = 16_384
_PIECE_BYTES: Final = 1 << 18
# Data that carries information rarely shrinks to less than a tenth.
_SUSPICIOUS_BYTES: Final = 4 << 20
_SUSPICIOUS_RATIO: Final = 32


def is_suspicious(num_bytes: int, num_compressed_bytes: int) -> bool:
    """Tells whether a message shrank further than data with information does."""
    return (
        num_bytes > _SUSPICIOUS_BYTES
        and num_bytes >= num_compressed_bytes * _SUSPICIOUS_RATIO
    )


def decompress(
    body: bytes | memoryview,
    encoding: Encoding,
    max_bytes: int,
    max_suspicious_bytes: int | None = None,
) -> bytes | memoryview:
    """Returns the decompressed message, which never exceeds ``max_bytes``.

    If there is a limit ``max_suspicious_bytes``, a suspicious message does not exceed
    that either.

    An empty body is an empty message, whatever its flag says, as in gRPC's own library.
    Blocks for about 1 ms per megabyte of output, or twice that if it is counted first,
    so it must not run on the serving loop. Thread-safe.

    Raises:
        ServingError: RESOURCE_EXHAUSTED if it expands too far. INTERNAL if it is not
            one whole stream of that encoding, or the encoding does not compress.

    """
    if encoding not in _WINDOWS:
        raise Internal("compressed message without grpc-encoding")
    if not body:
        return b""
    inflater = zlib.decompressobj(_WINDOWS[encoding])
    most = min(max_bytes, _SMALL_BYTES)
    try:
        message = inflater.decompress(body, most + 1)
        if len(message) <= most:
            _check_end(inflater, encoding)
            return message
        if most == max_bytes:
            raise _too_far(max_bytes)
        del message
        if max_suspicious_bytes is None:
            max_suspicious_bytes = max_bytes
        return _unpack(body, encoding, max_bytes, min(max_bytes, max_suspicious_bytes))
    except zlib.error as error:
        raise Internal(f"cannot decompress the request: {error}") from None


def _unpack(
    body: bytes | memoryview,
    encoding: Encoding,
    max_bytes: int,
    max_suspicious_bytes: int,
) -> memoryview:
    """Unpacks a message that is not small."""
    pages = _Pages(max_bytes)
    pieces = _pieces(body, encoding)
    for piece, num_read in pieces:
        pages.append(piece)
        if not is_suspicious(pages.size, num_read):
            continue
        size = pages.size
        del pages
        for rest, num_read in pieces:
            size += len(rest)
            if size > max_bytes:
                raise _too_far(max_bytes)
            # A message of data may begin with megabytes of zeros.
            if size > max_suspicious_bytes and is_suspicious(size, num_read):
                raise _suspicious(max_suspicious_bytes)
        pages = _Pages(size)
        for again, _ in _pieces(body, encoding):
            pages.append(again)
    return pages.view()


def _pieces(
    body: bytes | memoryview, encoding: Encoding
) -> Iterator[tuple[bytes, int]]:
    """Yields pieces of output, each with the number of input bytes used so far."""
    inflater = zlib.decompressobj(_WINDOWS[encoding])
    whole = memoryview(body)
    for start in range(0, len(whole), _INPUT_BYTES):
        part: bytes | memoryview = whole[start : start + _INPUT_BYTES]
        while part and not inflater.eof:
            piece = inflater.decompress(part, _PIECE_BYTES)
            part = inflater.unconsumed_tail
            yield piece, start + _INPUT_BYTES - len(part)
        if inflater.eof and start + _INPUT_BYTES < len(whole):
            raise _not_one_stream(encoding)
    yield inflater.flush(), len(whole)
    _check_end(inflater, encoding)


class _Pages:
    """Memory that grows without copies and is freed when nobody views it any more."""

    __slots__ = ("_max_bytes", "_pages", "_ready", "_room", "size")

    def __init__(self, max_bytes: int) -> None:
        self.size = 0
        self._max_bytes = max_bytes
        self._room = min(max_bytes, 2 * _SMALL_BYTES)
        # Pages take no memory before they are written to.
        self._pages = map_pages(self._room)
        self._ready = 0

    def append(self, piece: bytes) -> None:
        end = self.size + len(piece)
        if end > self._room:
            if end > self._max_bytes:
                raise _too_far(self._max_bytes)
            self._room = min(self._max_bytes, max(end, 2 * self._room))
            self._pages.resize(self._room)
        if end > self._ready:
            self._ready = page_supply.provide(self._pages, self._ready, end)
        self._pages[self.size : end] = piece
        self.size = end

    def view(self) -> memoryview:
        return memoryview(self._pages)[: self.size]


def _check_end(inflater: zlib._Decompress, encoding: Encoding) -> None:
    if not inflater.eof or inflater.unused_data:
        raise _not_one_stream(encoding)


def _not_one_stream(encoding: Encoding) -> ServingError:
    return Internal(f"cannot decompress the request: not one {encoding.value} stream")


def _too_far(max_bytes: int) -> ServingError:
    return ResourceExhausted(
        f"decompressed message larger than max ({max_bytes} bytes)"
    )


def _suspicious(max_bytes: int) -> ServingError:
    return ResourceExhausted(
        f"the message unpacks to over {_SUSPICIOUS_RATIO} times its size, and such a one "
        f"may take {max_bytes} bytes; send it uncompressed"
    )
