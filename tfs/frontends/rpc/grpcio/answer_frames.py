"""Which calls grpcio has ended, as the frames that it sends to a client say."""

from __future__ import annotations

from collections.abc import Iterator

from tfs.frontends.rpc.grpcio.request_frames import (
    DATA,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    RST_STREAM,
    unpack_head,
)


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
        while len(data) - index >= HEAD_BYTES:
            word, flags, stream_id = unpack_head(data, index)
            kind = word & 0xFF
            if kind == RST_STREAM or (flags & END_STREAM and kind in (DATA, HEADERS)):
                yield stream_id
            index += HEAD_BYTES + (word >> 8)
        self._rest = data[index:]
        self._num_left = max(0, index - len(data))
