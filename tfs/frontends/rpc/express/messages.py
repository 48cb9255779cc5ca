"""gRPC's length-prefixed messages, cut out of DATA payloads however they are split.

A message is one flag byte, four bytes of length and the body. The buffer of an
unfinished message is at most 64 KB or four times the bytes that arrived; the
announced length only decides when it is whole, and whether it is too long.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from tfs.core.errors import Internal, ResourceExhausted, ServingError
from tfs.frontends.rpc.express.request_head import Encoding

PREFIX_SIZE: Final = 5
_FIRST_ROOM: Final = 65_536
_GROWTH: Final = 4
# zlib's words for "this container, largest window"; gRPC's deflate is zlib's format.
_WINDOWS: Final = {Encoding.GZIP: 31, Encoding.DEFLATE: 15}


class MessageAssembler:
    """Cuts one stream's DATA payloads into messages. Loop-confined.

    Attributes:
        num_messages: Whole messages so far.

    Args:
        max_message_bytes: Longest body taken, as sent (compressed or not).

    """

    __slots__ = (
        "_body",
        "_filled",
        "_max_message_bytes",
        "_prefix",
        "_size",
        "num_messages",
    )

    def __init__(self, max_message_bytes: int) -> None:
        self.num_messages = 0
        self._max_message_bytes = max_message_bytes
        self._prefix = bytearray()
        # Room for a part of the message, of which _filled bytes have arrived.
        self._body: memoryview | None = None
        self._filled = 0
        self._size = 0

    @property
    def is_between_messages(self) -> bool:
        """Whether everything fed so far made whole messages."""
        return not self._prefix

    def feed(self, chunk: memoryview) -> Iterable[tuple[bool, memoryview]]:
        """Returns (compressed flag, body) of each message that ``chunk`` completes.

        To be used up before the next ``feed``.

        Raises:
            ServingError: RESOURCE_EXHAUSTED, the message is too long; INTERNAL, the
                flag byte is neither 0 nor 1. The call must fail with it.

        """
        if self._body is not None and len(chunk) < self._size - self._filled:
            self._append(chunk)  # the middle of a large message: nothing to yield
            return ()
        return self._cut(chunk)

    def _cut(self, chunk: memoryview) -> Iterator[tuple[bool, memoryview]]:
        while True:
            if self._body is None:
                wanted = PREFIX_SIZE - len(self._prefix)
                self._prefix += chunk[:wanted]
                if len(self._prefix) < PREFIX_SIZE:
                    return
                chunk = chunk[wanted:]
                self._size = int.from_bytes(self._prefix[1:], "big")
                if self._prefix[0] > 1:
                    raise Internal("a message's compressed flag is neither 0 nor 1")
                if self._size > self._max_message_bytes:
                    raise too_large(self._size, self._max_message_bytes)
                self._body = memoryview(bytearray(min(self._size, _FIRST_ROOM)))
                self._filled = 0
            part = chunk[: self._size - self._filled]
            self._append(part)
            if self._filled < self._size:
                return
            chunk = chunk[len(part) :]
            is_compressed = self._prefix[0] == 1
            body = self._body.toreadonly()
            self._body = None
            self._prefix = bytearray()
            self.num_messages += 1
            yield is_compressed, body

    def _append(self, part: memoryview) -> None:
        body = self._body
        assert body is not None
        begin = self._filled
        end = begin + len(part)
        if end > len(body):
            # By large factors, and never within the allocator: growing two messages
            # in turn would copy each of them many times over.
            room = min(self._size, max(end, len(body) * _GROWTH))
            larger = memoryview(bytearray(room))
            larger[:begin] = body[:begin]
            body = self._body = larger
        body[begin:end] = part
        self._filled = end


def too_large(size_bytes: int, max_bytes: int) -> ServingError:
    """Returns the error of a message that is longer than the server takes."""
    return ResourceExhausted(
        f"received message larger than max ({size_bytes} vs. {max_bytes} bytes: "
        "--max_message_bytes, --max_receive_bytes)"
    )


def decompress(body: bytes | memoryview, encoding: Encoding, max_bytes: int) -> bytes:
    """Returns the message that was compressed; it never exceeds ``max_bytes``.

    Blocks for about 1 ms per megabyte of output: not for the serving loop.

    Raises:
        ServingError: RESOURCE_EXHAUSTED, it expands too far; INTERNAL, it is not
            one whole stream of that encoding, or that encoding is none.

    """
    window = _WINDOWS.get(encoding)
    if window is None:
        raise Internal("compressed message without grpc-encoding")
    inflater = zlib.decompressobj(window)
    try:
        message = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise Internal(f"cannot decompress the request: {error}") from None
    if len(message) > max_bytes:
        raise ResourceExhausted(
            f"decompressed message larger than max ({max_bytes} bytes)"
        )
    if not inflater.eof or inflater.unused_data:
        raise Internal(
            f"cannot decompress the request: not one {encoding.value} stream"
        )
    return message
