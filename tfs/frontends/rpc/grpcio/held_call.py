"""The frames with which a call begins, until grpcio may have them."""

from __future__ import annotations

from typing import Final

from tfs.frontends.rpc.frames import (
    DEFAULT_FRAME_SIZE,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PADDED,
    PRIORITIZED,
    FrameType,
    first_piece,
    frame,
    unpack_head,
)

_BITS: Final = 0x7FFF_FFFF


class HeldCall:
    """A call that has begun, as its client sent it. Confined to grpcio's thread.

    Attributes:
        stream_id: Its stream.
        data: Its frames; of the last one a part may be missing.
        num_frames_bytes: How long the frames with its headers are.
        num_header_bytes: What its headers count.
        num_body_bytes: How much DATA it has.
        has_all_headers: Whether the last of those frames has begun.
        is_reset: Whether it never begins.
        is_sent: Whether its DATA ends the request.

    Args:
        stream_id: Its stream.

    """

    __slots__ = (
        "data",
        "has_all_headers",
        "is_reset",
        "is_sent",
        "num_body_bytes",
        "num_frames_bytes",
        "num_header_bytes",
        "stream_id",
    )

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.data = bytearray()
        self.num_frames_bytes = 0
        self.num_header_bytes = 0
        self.num_body_bytes = 0
        self.has_all_headers = False
        self.is_reset = False
        self.is_sent = False

    @property
    def is_whole(self) -> bool:
        """Whether all of its headers are there."""
        return self.has_all_headers and len(self.data) >= self.num_frames_bytes

    @property
    def ends_stream(self) -> bool:
        """Whether its headers are all that its client sends."""
        return bool(unpack_head(self.data, 0)[1] & END_STREAM)

    def note_frame(self, flags: int, num_bytes: int) -> None:
        """Notes that the next frame has headers, so many bytes of them."""
        self.num_frames_bytes += HEAD_SIZE + num_bytes
        self.num_header_bytes += num_bytes
        self.has_all_headers = bool(flags & END_HEADERS)

    def block(self) -> bytes:
        """Returns its headers, which are whole, as its client compressed them.

        Raises:
            ConnectionFault: Padding or priority do not fit.

        """
        word, flags, stream_id = unpack_head(self.data, 0)
        index = HEAD_SIZE + (word >> 8)
        piece = bytes(self.data[HEAD_SIZE:index])
        if flags & (PADDED | PRIORITIZED):
            piece = first_piece(flags, stream_id & _BITS, piece)
        if index == self.num_frames_bytes:
            return piece
        pieces = [piece]
        while index < self.num_frames_bytes:
            begin = index + HEAD_SIZE
            index = begin + (unpack_head(self.data, index)[0] >> 8)
            pieces.append(bytes(self.data[begin:index]))
        return b"".join(pieces)

    def opened(self, block: bytes) -> bytes:
        """Returns its frames with other headers."""
        kind, flags = FrameType.HEADERS, END_STREAM if self.ends_stream else 0
        parts = []
        while len(block) > DEFAULT_FRAME_SIZE:
            piece, block = block[:DEFAULT_FRAME_SIZE], block[DEFAULT_FRAME_SIZE:]
            parts.append(frame(kind, flags, self.stream_id, piece))
            kind, flags = FrameType.CONTINUATION, 0
        parts.append(frame(kind, flags | END_HEADERS, self.stream_id, block))
        return b"".join(parts) + self.body()

    def body(self) -> bytearray:
        """Returns its other frames.

        If grpcio gets them alone it ignores them, and gives the client back what they
        took of the connection's window.
        """
        return self.data[self.num_frames_bytes :]
