"""Which calls grpcio has ended, as the frames that it sends to a client say."""

from __future__ import annotations

from typing import Final

from tfs.frontends.rpc.frames import (
    END_STREAM,
    HEAD_SIZE,
    FrameType,
    unpack_head,
)

_ENDING: Final = (FrameType.DATA, FrameType.HEADERS)


class AnswerFrames:
    """Reads what grpcio sends over one connection. Confined to grpcio's thread.

    Attributes:
        num_whole: Bytes of what was read last up to the end of its last whole frame; 0
            if no frame ended there.
        is_between: Whether other frames may follow what was read so far. They may not
            before the first one, which has to be SETTINGS.

    """

    def __init__(self) -> None:
        self.num_whole = 0
        self.is_between = False
        self._rest = b""  # the beginning of a head
        self._num_left = 0  # bytes of the frame that is being read

    def ended(self, data: bytes) -> list[int]:
        """Returns the streams that end with this, which is what was sent next."""
        num_bytes = len(data)
        if self._num_left > num_bytes:
            self._num_left -= num_bytes
            self.num_whole = 0
            return []
        streams = []
        num_before = len(self._rest)
        data = self._rest + data
        begin = index = self._num_left
        while len(data) - index >= HEAD_SIZE:
            word, flags, stream_id = unpack_head(data, index)
            kind = word & 0xFF
            if kind == FrameType.RST_STREAM or (flags & END_STREAM and kind in _ENDING):
                streams.append(stream_id)
            begin = index
            index += HEAD_SIZE + (word >> 8)
        self._rest = data[index:]
        self._num_left = max(0, index - len(data))
        end = begin if self._num_left else index
        self.num_whole = max(0, end - num_before)
        self.is_between = end == len(data)
        return streams
