"""Memory of large messages, used again once nobody points into it.

A fresh buffer has to be zeroed, and its pages faulted in if the allocator does not have
them. For an image of 602 KB that costs as much as copying the image, for 10 MB several
times as much. Clients that send large messages usually send many of one size, so the
next message mostly fits into the memory of an earlier one.

No event tells when a message is no longer needed, because tensors anywhere may point
into it. But Python refuses to resize a buffer while anything points into it, so an
attempt to resize tells.
"""

from __future__ import annotations

import mmap
from typing import Final, TypeAlias

_MAX_BUFFERS: Final = 16
_LEAST_BYTES: Final = 65_536
_LARGEST_WASTE: Final = 2

Buffer: TypeAlias = bytearray | mmap.mmap


class ReceiveBuffers:
    """Buffers that were lent and may be lent again. Loop-confined.

    It never makes the server take more memory: every buffer kept was filled by an
    earlier message, and together they take no more than ``max_bytes``.

    Attributes:
        kept_bytes: Size of all buffers kept, including those in use.

    """

    __slots__ = ("_buffers", "_max_bytes", "_was_used", "kept_bytes")

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self.kept_bytes = 0
        self._max_bytes = max_bytes
        self._buffers: list[Buffer] = []  # the longest kept first
        self._was_used = False

    def take(self, size_bytes: int) -> Buffer | None:
        """Returns a buffer of at least that size and at most twice that, or None.

        It still contains the bytes of an earlier message. It is free again when nothing
        points into it any more.
        """
        buffers = self._buffers
        if size_bytes < _LEAST_BYTES or not buffers:
            return None
        for index, buffer in enumerate(buffers):
            if size_bytes <= len(buffer) <= size_bytes * _LARGEST_WASTE and _is_free(
                buffer
            ):
                self._was_used = True
                buffers.append(buffers.pop(index))  # the next look starts at others
                return buffer
        return None

    def keep(self, buffer: Buffer) -> None:
        """Keeps a buffer that a whole message has filled, if it has a suitable size."""
        size_bytes = len(buffer)
        if not _LEAST_BYTES <= size_bytes <= self._max_bytes:
            return
        self._was_used = True
        buffers = self._buffers
        buffers.append(buffer)
        self.kept_bytes += size_bytes
        while len(buffers) > _MAX_BUFFERS or self.kept_bytes > self._max_bytes:
            self.kept_bytes -= len(buffers.pop(0))

    def sweep(self) -> bool:
        """Forgets everything if nothing was lent or kept since the last sweep.

        Returns whether anything was lent, kept or forgotten since then.
        """
        was_used, self._was_used = self._was_used, False
        return was_used or self.clear()

    def clear(self) -> bool:
        """Forgets every buffer; those in use stay with their users.

        Returns whether there was anything to forget.
        """
        had_any = bool(self._buffers)
        self._buffers.clear()
        self.kept_bytes = 0
        return had_any


def _is_free(buffer: Buffer) -> bool:
    """Tells whether nothing points into a buffer, by a resize that moves nothing."""
    try:
        if isinstance(buffer, mmap.mmap):
            buffer.resize(len(buffer))
            return True
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
