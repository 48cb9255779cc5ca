"""Which calls grpcio has ended, as the frames that it sends to a client say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfs.frontends.rpc.frames import (
    END_STREAM,
    HEAD_SIZE,
    FrameType,
    unpack_head,
)

_ENDING: Final = (FrameType.DATA, FrameType.HEADERS)


class AnswerFrames:
    """Reads what grpcio sends over one connection. Confined to grpcio's thread."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a head
        self._num_left = 0  # bytes of the frame that is being read

    def ended(self, data: bytes) -> Iterator[int]:
        """Yields the streams that end with this, which is what was sent next."""
        if self._num_left >= len(data):
            self._num_left -= len(data)
            return
        data = self._rest + data
        index = self._num_left
        while len(data) - index >= HEAD_SIZE:
            word, flags, stream_id = unpack_head(data, index)
            kind = word & 0xFF
            if kind == FrameType.RST_STREAM or (flags & END_STREAM and kind in _ENDING):
                yield stream_id
            index += HEAD_SIZE + (word >> 8)
        self._rest = data[index:]
        self._num_left = max(0, index - len(data))
