"""What one connection may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tfs.frontends.http2.frames import (
    DEFAULT_FRAME_SIZE,
    LARGEST_FRAME_SIZE,
    LARGEST_WINDOW,
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may ask of us. Immutable.

    Attributes:
        max_concurrent_streams: Calls at a time, including those cut off whose work
            still runs.
        max_requests_per_round: Most requests that one ``receive`` takes.
        max_message_bytes: Longest message, in a request or a reply.
        max_request_bytes: Longest message of a request, if that is less.
        max_header_list_bytes: Longest header list, by RFC 7541's count; a header
            block may be as long on the wire.
        max_frame_size: Longest frame payload that we announce to take, in bytes.
        max_continuations: Most CONTINUATION frames of one header block.

    """

    max_concurrent_streams: int = 1024
    max_requests_per_round: int = 32
    max_message_bytes: int = 64 << 20
    max_request_bytes: int = LARGEST_WINDOW
    max_header_list_bytes: int = 16_384
    max_frame_size: int = 262_144
    max_continuations: int = 16

    def __post_init__(self) -> None:
        if not DEFAULT_FRAME_SIZE <= self.max_frame_size <= LARGEST_FRAME_SIZE:
            raise ValueError(f"max_frame_size out of range: {self.max_frame_size}")
        for name in (each.name for each in fields(self)):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive: {getattr(self, name)}")
