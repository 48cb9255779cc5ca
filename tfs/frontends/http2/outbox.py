"""Answers of a stream that wait for the client's flow-control windows."""

from __future__ import annotations

from typing import Final

from tfs.core.tensor_view import Buffer
from tfs.frontends.http2.frames import FrameType, frame_head

Output = list[Buffer]

# Small messages of a stream are joined. Kept apart, each would take ten times its
# bytes.
_SMALL_BYTES: Final = 512
_JOINED_BYTES: Final = 4096


class Outbox:
    """Bytes to be sent, in order. Loop-confined; falsy when empty.

    Large parts are not copied before they wait, and small ones are joined. Next to nothing is kept
    beside them, because an attacker can have tens of thousands of these.

    Attributes:
        size_bytes: How many bytes are in it.
        moved_bytes: How many were moved out of it since it was made.

    """

    __slots__ = ("_parts", "_start", "moved_bytes", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.moved_bytes = 0
        self._parts: Output = []
        self._start = 0  # bytes already sent of the first part

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    def add(self, part: bytes | memoryview) -> None:
        """Adds bytes behind the others."""
        if not part:
            return
        parts = self._parts
        self.size_bytes += len(part)
        if len(part) <= _SMALL_BYTES and parts and len(parts[-1]) <= _JOINED_BYTES:
            parts[-1] = b"".join((parts[-1], part))
        elif len(part) <= _JOINED_BYTES:
            parts.append(bytes(part))
        else:
            parts.append(memoryview(part))  # slices of views are not copies

    def detach(self) -> None:
        """Copies what lies in memory of others: an answer would keep its whole batch's.

        To be called for what may wait long.
        """
        self._parts = [
            memoryview(bytes(part)) if isinstance(part, memoryview) else part
            for part in self._parts
        ]

    def move(
        self, out: Output, stream_id: int, num_bytes: int, largest_frame: int
    ) -> None:
        """Moves bytes into ``out``, cut into DATA frames.

        Args:
            out: The list that gets the frames, with heads and payloads as separate
                parts.
            stream_id: The stream of the frames.
            num_bytes: How many bytes to move, no more than are in it.
            largest_frame: The largest payload of a frame.

        """
        parts = self._parts
        part = parts[0]
        start = self._start
        size = largest_frame
        head = frame_head(FrameType.DATA, 0, stream_id, size)
        left = num_bytes
        while left:
            if left < size:
                size = left
                head = frame_head(FrameType.DATA, 0, stream_id, size)
            out.append(head)
            left -= size
            stop = start + size
            while stop > len(part):
                out.append(part[start:])
                parts.pop(0)
                stop -= len(part)
                start = 0
                part = parts[0]
            out.append(part[start:stop])
            start = stop
        if start == len(part):
            parts.pop(0)
            start = 0
        self._start = start
        self.size_bytes -= num_bytes
        self.moved_bytes += num_bytes
