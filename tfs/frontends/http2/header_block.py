"""The header block that HEADERS and CONTINUATION frames bring (RFC 9113, section 4.3).

The pieces are joined before HPACK decodes any of them. Since no other frame may come
between them (section 6.10), one block per connection waits, and its size is bounded.
"""

from __future__ import annotations

from typing import Final

from tfs.frontends.http2.frames import ConnectionFault, ErrorCode
from tfs.frontends.http2.limits import ConnectionLimits

_SLACK_BYTES: Final = 256
"""Bytes by which a header block may exceed its header list, for padding, priority and
table size updates."""

_LARGEST_TIMES: Final = 4
"""A block may be this many times as long as the longest header list that we take. Envoy
forwards 60 KB, and clients' libraries ignore the limit that we announce."""


class HeaderBlock:
    """A connection's unfinished header block, if there is one. Loop-confined.

    Attributes:
        stream_id: The stream that it opens or ends; 0: no block is unfinished.
        ends_stream: Whether its HEADERS had END_STREAM.
        since_s: When its first piece arrived.
        small_bytes: The call of a longer block is refused, once the block is whole.
        large_bytes: A longer block ends the connection.

    Args:
        limits: How long a block may be, and in how many pieces it may come.
        now_s: The time.

    """

    __slots__ = (
        "_limits",
        "_num_continuations",
        "_pieces",
        "ends_stream",
        "large_bytes",
        "since_s",
        "small_bytes",
        "stream_id",
    )

    def __init__(self, limits: ConnectionLimits, now_s: float) -> None:
        self.stream_id = 0
        self.ends_stream = False
        self.since_s = now_s
        most = limits.max_header_list_bytes
        self.small_bytes = most + _SLACK_BYTES
        self.large_bytes = most * _LARGEST_TIMES + _SLACK_BYTES
        self._limits = limits
        self._pieces = bytearray()
        self._num_continuations = 0

    @property
    def size_bytes(self) -> int:
        """How many bytes of it have arrived."""
        return len(self._pieces)

    def begin(
        self, stream_id: int, piece: bytes, ends_stream: bool, now_s: float
    ) -> None:
        """Takes the first piece of a block of which more will come."""
        self.stream_id = stream_id
        self.ends_stream = ends_stream
        self.since_s = now_s
        self._pieces = bytearray(piece)
        self._num_continuations = 0

    def append(self, piece: bytes) -> None:
        """Takes the payload of a CONTINUATION.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM: the block is too long, or comes in too
                many pieces.

        """
        self._pieces += piece
        self._num_continuations += 1
        if (
            self._num_continuations > self._limits.max_continuations
            or len(self._pieces) > self.large_bytes
        ):
            raise block_too_long()

    def take(self) -> bytes:
        """Returns the block, which is whole; afterwards no block is unfinished."""
        block = bytes(self._pieces)
        self.stream_id = 0
        self._pieces = bytearray()
        return block


def block_too_long() -> ConnectionFault:
    """Returns the fault of a client whose header block is longer than is accepted."""
    return ConnectionFault(
        ErrorCode.ENHANCE_YOUR_CALM, "header block too long or too cut up"
    )
