"""How a client's requests begin: the frames before the message, without stream ids."""

from __future__ import annotations

from struct import Struct
from typing import Final

from tfs.frontends.rpc.frames import (
    HEAD_SIZE,
    LARGEST_WINDOW,
    FrameType,
    pack_uint32,
    unpack_head,
)
from tfs.frontends.rpc.heads.request_head import RequestHead

UPDATE: Final = Struct(">IBII")
"""A whole WINDOW_UPDATE frame: (length << 8 | type, flags, stream id, increment)."""

UPDATE_WORD: Final = 4 << 8 | FrameType.WINDOW_UPDATE

# Longest block of an opening, which holds a second copy of it. Longer ones are rare.
_MAX_OPENING_BYTES: Final = 256

_TYPE_PLACE: Final = 3  # in a frame's head
_ID_PLACE: Final = 5
_ID_SIZE: Final = 4


class RequestOpening:
    """The frames before a request's first DATA. Immutable.

    Attributes:
        block: The header block.
        head: What it says.
        head_size: Bytes of its HEADERS frame.
        increment: Increment of the WINDOW_UPDATE behind that; 0 if there is none.
        parts: The bytes of both around the stream's id.
        size: Bytes of both parts and the stream's id.

    """

    __slots__ = ("block", "head", "head_size", "increment", "parts", "size")

    def __init__(
        self, head: RequestHead, block: bytes, increment: int, parts: tuple[bytes, ...]
    ) -> None:
        self.head = head
        self.block = block
        self.head_size = HEAD_SIZE + len(block)
        self.increment = increment
        self.parts = parts
        self.size = sum(map(len, parts)) + _ID_SIZE * (len(parts) - 1)


def read_opening(
    data: bytes, index: int, stream_id: int, block: bytes, head: RequestHead
) -> RequestOpening | None:
    """Returns how a request begins.

    None if its DATA does not follow its HEADERS, or these are long.

    Args:
        data: Bytes received.
        index: Offset of its HEADERS, whose only flag is END_HEADERS.
        stream_id: The id of the request's stream.
        block: The whole payload of HEADERS.
        head: What the block says.

    """
    if len(block) > _MAX_OPENING_BYTES:
        return None
    end = index + HEAD_SIZE + len(block)
    flagged = data[index : index + _ID_PLACE]
    if _is_data(data, end, stream_id):
        return RequestOpening(head, block, 0, (flagged, block))
    if not _is_data(data, end + UPDATE.size, stream_id):
        return None
    word, _, updated_id, increment = UPDATE.unpack_from(data, end)
    if (
        word != UPDATE_WORD
        or updated_id != stream_id
        or not 0 < increment <= LARGEST_WINDOW
    ):
        return None
    updated = block + data[end : end + _ID_PLACE]
    return RequestOpening(
        head, block, increment, (flagged, updated, pack_uint32(increment))
    )


def _is_data(data: bytes, index: int, stream_id: int) -> bool:
    """Tells whether the whole head of a stream's DATA frame lies at ``index``."""
    if len(data) < index + HEAD_SIZE or data[index + _TYPE_PLACE] != FrameType.DATA:
        return False
    return bool(unpack_head(data, index)[2] == stream_id)
