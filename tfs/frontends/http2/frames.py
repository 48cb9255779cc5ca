"""HTTP/2 frames (RFC 9113, sections 4 and 6): names, limits and wire form.

Everything here is pure. A received frame's nine-byte head is checked by
:func:`check_head` before a byte of its payload is used. For sending there are functions
that return finished frames.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE: Final = 9
DEFAULT_FRAME_SIZE: Final = 16_384
LARGEST_FRAME_SIZE: Final = (1 << 24) - 1
DEFAULT_WINDOW: Final = 65_535
DEFAULT_TABLE_SIZE: Final = 4096
"""Bytes of HPACK's dynamic table, in either direction, unless SETTINGS say otherwise.
"""
LARGEST_WINDOW: Final = (1 << 31) - 1

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

unpack_head: Final = struct.Struct(">IBI").unpack_from
"""(length << 8 | type, flags, reserved bit and stream id) of a frame head."""

pack_uint32: Final = struct.Struct(">I").pack
unpack_uint32: Final = struct.Struct(">I").unpack_from
_pack_head = struct.Struct(">IBI").pack
_unpack_setting = struct.Struct(">HI").iter_unpack


class FrameType(enum.IntEnum):
    """The frame types of RFC 9113; anything above CONTINUATION is an extension."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ended (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Setting(enum.IntEnum):
    """The settings of RFC 9113; unknown ones are ignored."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ConnectionFault(Exception):
    """The peer broke the protocol (or our patience); the connection must close.

    Attributes:
        code: The error code that GOAWAY carries.
        reason: For GOAWAY's debug data and the log; no peer data in it.

    """

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


# Whether a frame belongs to a stream (True), to the connection (False) or to either (None),
# and its size, if that is fixed.
_RULES: Final[Mapping[int, tuple[bool | None, int | None]]] = {
    FrameType.DATA: (True, None),
    FrameType.HEADERS: (True, None),
    FrameType.PRIORITY: (True, 5),
    FrameType.RST_STREAM: (True, 4),
    FrameType.SETTINGS: (False, None),
    FrameType.PUSH_PROMISE: (True, None),
    FrameType.PING: (False, 8),
    FrameType.GOAWAY: (False, None),
    FrameType.WINDOW_UPDATE: (None, 4),
    FrameType.CONTINUATION: (True, None),
}


_ANY: Final = (0, 0xFFFFFFFF, ErrorCode.NO_ERROR)
_RANGES: Final[Mapping[int, tuple[int, int, ErrorCode]]] = {
    Setting.ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    Setting.INITIAL_WINDOW_SIZE: (0, LARGEST_WINDOW, ErrorCode.FLOW_CONTROL_ERROR),
    Setting.MAX_FRAME_SIZE: (
        DEFAULT_FRAME_SIZE,
        LARGEST_FRAME_SIZE,
        ErrorCode.PROTOCOL_ERROR,
    ),
}


def check_head(frame_type: int, flags: int, stream_id: int, size: int) -> None:
    """Checks what RFC 9113 section 6 says about a frame's size and stream.

    Raises:
        ConnectionFault: FRAME_SIZE_ERROR or PROTOCOL_ERROR. A PRIORITY frame of a wrong
            size, which is only a stream error in the RFC, ends the connection here.

    """
    is_of_stream, fixed_size = _RULES.get(frame_type, (None, None))
    if is_of_stream is not None and is_of_stream is not bool(stream_id):
        where = "a stream" if stream_id else "stream 0"
        raise ConnectionFault(
            ErrorCode.PROTOCOL_ERROR, f"{FrameType(frame_type).name} on {where}"
        )
    if fixed_size is not None and size != fixed_size:
        raise ConnectionFault(
            ErrorCode.FRAME_SIZE_ERROR,
            f"{FrameType(frame_type).name} of {size} bytes, not {fixed_size}",
        )
    if frame_type == FrameType.SETTINGS and (
        size % 6 or (flags & ACK and size) or size > 6 * 64
    ):
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {size} bytes")
    if frame_type == FrameType.GOAWAY and size < 8:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {size} bytes")


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Returns one whole frame."""
    return _pack_head(len(payload) << 8 | frame_type, flags, stream_id) + payload


def frame_head(frame_type: int, flags: int, stream_id: int, size: int) -> bytes:
    """Returns the nine bytes before a payload of ``size`` bytes."""
    return _pack_head(size << 8 | frame_type, flags, stream_id)


def settings(values: Mapping[Setting, int]) -> bytes:
    """Returns a SETTINGS frame."""
    payload = b"".join(struct.pack(">HI", key, value) for key, value in values.items())
    return frame(FrameType.SETTINGS, 0, 0, payload)


SETTINGS_ACK: Final = frame(FrameType.SETTINGS, ACK, 0)


def parse_settings(payload: bytes) -> Sequence[tuple[int, int]]:
    """Returns the (identifier, value) pairs in order; the size was checked.

    Raises:
        ConnectionFault: A value is out of its range.

    """
    values = [*_unpack_setting(payload)]
    for key, value in values:
        least, most, code = _RANGES.get(key, _ANY)
        if not least <= value <= most:
            raise ConnectionFault(code, f"{Setting(key).name} out of range")
    return values


def first_piece(flags: int, stream_id: int, payload: bytes) -> bytes:
    """Returns the header block in a HEADERS payload, without padding and priority.

    Raises:
        ConnectionFault: Padding or priority do not fit, or the stream depends on
            itself.

    """
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no pad length")
        start = 1
        end -= payload[0]
    if flags & PRIORITIZED:
        if end - start >= 5 and (
            unpack_uint32(payload, start)[0] & LARGEST_WINDOW == stream_id
        ):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "depends on itself")
        start += 5
    if start > end:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding too long")
    return payload[start:end]


def ping(payload: bytes, ack: bool = False) -> bytes:
    """Returns a PING frame around eight bytes."""
    return frame(FrameType.PING, ACK if ack else 0, 0, payload)


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """Returns a GOAWAY frame; the reason travels as debug data."""
    return frame(
        FrameType.GOAWAY,
        0,
        0,
        pack_uint32(last_stream_id) + pack_uint32(code) + reason.encode(),
    )


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Returns an RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream_id, pack_uint32(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """Returns a WINDOW_UPDATE frame; ``increment`` is 1 to 2^31-1."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, pack_uint32(increment))
