"""gRPC's length-prefixed messages, cut out of DATA payloads however they are split.

A message is one flag byte, four bytes of length and the body. The buffer of an
unfinished message is made when its first bytes arrive. It has at most 256 bytes or four
times the bytes that have arrived, unless it is a buffer that an earlier message left.
The announced length only decides when the message is whole, and whether it is too long.

Messages of more than a megabyte grow into memory pages of their own: bytes that have
not arrived take next to no memory, bytes that have arrived are not copied as the buffer
grows, and nothing stays in the heap afterwards.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import Final

from tfs.core.errors import Internal, ResourceExhausted, ServingError
from tfs.frontends.rpc.express.http2.receive_buffers import ReceiveBuffers
from tfs.frontends.rpc.mapped_pages import map_pages, page_supply

PREFIX_SIZE: Final = 5
_LEAST_ROOM: Final = 256
_NO_ROOM: Final = memoryview(bytearray())
_GROWTH: Final = 4
# Below this, page faults cost more than zeroing memory of the heap.
_MAPPED_BYTES: Final = 1 << 20
# A large message gets pages of its own once this much of it has arrived, which clients
# send in one frame. If many messages began with more than this in the heap, they would
# take room there that nothing fills, and would leave holes.
_LEAST_MAPPED_BYTES: Final = 16_000


class MessageAssembler:
    """Cuts one stream's DATA payloads into messages. Loop-confined.

    Attributes:
        missing_bytes: How much of the current message is still missing; 0 while none
            has begun, or while only a part of its prefix has arrived.

    Args:
        max_message_bytes: Longest body taken, as sent (compressed or not).
        buffers: Lends the memory for large messages, if it has any.

    """

    __slots__ = (
        "_body",
        "_buffers",
        "_filled",
        "_is_lent",
        "_max_message_bytes",
        "_prefix",
        "_ready",
        "_size",
        "missing_bytes",
    )

    def __init__(
        self, max_message_bytes: int, buffers: ReceiveBuffers | None = None
    ) -> None:
        self.missing_bytes = 0
        self._max_message_bytes = max_message_bytes
        self._buffers = buffers
        self._prefix = bytearray()
        # Room for a part of the message, of which _filled bytes have arrived.
        self._body: memoryview | None = None
        self._is_lent = False
        self._filled = 0
        self._ready = 0  # how much of that room may be written to already
        self._size = 0

    @property
    def is_between_messages(self) -> bool:
        """Whether everything fed so far made whole messages."""
        return not self._prefix

    def feed(self, chunk: memoryview) -> Iterable[tuple[bool, memoryview]]:
        """Returns (compressed flag, body) of each message that ``chunk`` completes.

        The result has to be consumed before the next ``feed``.

        Raises:
            ServingError: RESOURCE_EXHAUSTED if the message is too long, INTERNAL if the
                flag byte is neither 0 nor 1. The call must fail with this error.

        """
        if len(chunk) < self.missing_bytes:
            self.append(chunk)  # the middle of a large message: nothing to yield
            return ()
        return self._cut(chunk)

    def append(self, part: memoryview) -> None:
        """Takes the next bytes of a message, which are not more than are missing."""
        body = self._body
        assert body is not None
        begin = self._filled
        end = begin + len(part)
        if end > self._ready:
            body = self._make_room(body, end)
        body[begin:end] = part
        self._filled = end
        self.missing_bytes = self._size - end

    def _cut(self, chunk: memoryview) -> Iterator[tuple[bool, memoryview]]:
        while True:
            if self._body is None:
                wanted = PREFIX_SIZE - len(self._prefix)
                self._prefix += chunk[:wanted]
                if len(self._prefix) < PREFIX_SIZE:
                    return
                chunk = chunk[wanted:]
                self._begin(int.from_bytes(self._prefix[1:], "big"))
            part = chunk[: self.missing_bytes]
            self.append(part)
            if self.missing_bytes:
                return
            chunk = chunk[len(part) :]
            is_compressed = self._prefix[0] == 1
            body = self._end()
            yield is_compressed, body

    def _begin(self, size: int) -> None:
        if self._prefix[0] > 1:
            raise Internal("a message's compressed flag is neither 0 nor 1")
        if size > self._max_message_bytes:
            raise too_large(size, self._max_message_bytes)
        buffer = self._buffers.take(size) if self._buffers is not None else None
        self._is_lent = buffer is not None
        # A message that was only announced gets no memory, because thousands of streams
        # may each announce one and send nothing of it.
        self._body = _NO_ROOM if buffer is None else memoryview(buffer)[:size]
        self._ready = 0 if buffer is None else size
        self._filled = 0
        self._size = self.missing_bytes = size

    def _make_room(self, body: memoryview, end: int) -> memoryview:
        """Returns the message's room, of which ``end`` bytes may be written to now."""
        if end > len(body):
            body = self._grow(body, end)
        buffer = body.obj
        if isinstance(buffer, mmap.mmap):
            self._ready = page_supply.provide(buffer, self._ready, end)
        else:
            self._ready = len(body)
        return body

    def _grow(self, body: memoryview, end: int) -> memoryview:
        # The room grows by a large factor and not in small steps by realloc, which
        # would copy two messages that grow in turn again and again.
        wanted = max(end, len(body) * _GROWTH) if body else end * _GROWTH
        room = min(self._size, max(wanted, _LEAST_ROOM))
        buffer = body.obj
        if isinstance(buffer, mmap.mmap):
            body.release()
            buffer.resize(room)
            self._body = memoryview(buffer)
            return self._body
        filled = self._filled
        # A process may have 65,530 mappings, so a message of which little has arrived
        # gets none.
        is_mapped = self._size > _MAPPED_BYTES and end >= _LEAST_MAPPED_BYTES
        larger = memoryview(map_pages(room) if is_mapped else bytearray(room))
        larger[:filled] = body[:filled]
        self._ready = filled
        self._body = larger
        return larger

    def _end(self) -> memoryview:
        body = self._body
        assert body is not None
        if self._buffers is not None and not self._is_lent:
            buffer = body.obj
            assert isinstance(buffer, bytearray | mmap.mmap)  # it was made above
            self._buffers.keep(buffer)
        self._body = None
        self._prefix = bytearray()
        return body


def too_large(size_bytes: int, max_bytes: int) -> ServingError:
    """Returns the error of a message that is longer than the server takes."""
    return ResourceExhausted(
        f"received message larger than max ({size_bytes} vs. {max_bytes} bytes: "
        "--max_message_bytes, --max_receive_bytes)"
    )
