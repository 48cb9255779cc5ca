"""Frames are checked by their head alone, and written as the RFC draws them."""

from __future__ import annotations

import pytest

from tests.frontends.express.wire import parse_frames
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import (
    PADDED,
    PRIORITIZED,
    ConnectionFault,
    ErrorCode,
    FrameType,
    Setting,
    first_piece,
)

BAD_HEADS = [
    (FrameType.DATA, 0, 0, 5, ErrorCode.PROTOCOL_ERROR),
    (FrameType.HEADERS, 0, 0, 5, ErrorCode.PROTOCOL_ERROR),
    (FrameType.PRIORITY, 0, 0, 5, ErrorCode.PROTOCOL_ERROR),
    (FrameType.RST_STREAM, 0, 0, 4, ErrorCode.PROTOCOL_ERROR),
    (FrameType.PUSH_PROMISE, 0, 0, 4, ErrorCode.PROTOCOL_ERROR),
    (FrameType.CONTINUATION, 0, 0, 4, ErrorCode.PROTOCOL_ERROR),
    (FrameType.SETTINGS, 0, 1, 6, ErrorCode.PROTOCOL_ERROR),
    (FrameType.PING, 0, 1, 8, ErrorCode.PROTOCOL_ERROR),
    (FrameType.GOAWAY, 0, 1, 8, ErrorCode.PROTOCOL_ERROR),
    (FrameType.PRIORITY, 0, 1, 4, ErrorCode.FRAME_SIZE_ERROR),
    (FrameType.RST_STREAM, 0, 1, 5, ErrorCode.FRAME_SIZE_ERROR),
    (FrameType.PING, 0, 0, 7, ErrorCode.FRAME_SIZE_ERROR),
    (FrameType.WINDOW_UPDATE, 0, 0, 3, ErrorCode.FRAME_SIZE_ERROR),
    (FrameType.SETTINGS, 0, 0, 7, ErrorCode.FRAME_SIZE_ERROR),
    (FrameType.SETTINGS, frames.ACK, 0, 6, ErrorCode.FRAME_SIZE_ERROR),
    (FrameType.SETTINGS, 0, 0, 6 * 1000, ErrorCode.FRAME_SIZE_ERROR),
    (FrameType.GOAWAY, 0, 0, 7, ErrorCode.FRAME_SIZE_ERROR),
]


@pytest.mark.parametrize(
    ("frame_type", "flags", "stream_id", "size", "code"), BAD_HEADS
)
def test_a_head_that_breaks_the_rules_closes_the_connection(
    frame_type: FrameType, flags: int, stream_id: int, size: int, code: ErrorCode
) -> None:
    """Size and stream are checked before the payload is looked at."""
    with pytest.raises(ConnectionFault) as caught:
        frames.check_head(frame_type, flags, stream_id, size)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("frame_type", "stream_id", "size"),
    [
        (FrameType.DATA, 1, 0),
        (FrameType.HEADERS, 1, 100),
        (FrameType.PRIORITY, 1, 5),
        (FrameType.RST_STREAM, 1, 4),
        (FrameType.SETTINGS, 0, 12),
        (FrameType.PING, 0, 8),
        (FrameType.GOAWAY, 0, 20),
        (FrameType.WINDOW_UPDATE, 0, 4),
        (FrameType.WINDOW_UPDATE, 3, 4),
        (FrameType.CONTINUATION, 1, 0),
        (200, 0, 17),
        (200, 9, 0),
    ],
)
def test_a_head_within_the_rules_passes(
    frame_type: int, stream_id: int, size: int
) -> None:
    """What the RFC allows is not refused; extensions may be of any size."""
    frames.check_head(frame_type, 0, stream_id, size)


def test_written_frames_can_be_read_back() -> None:
    """Heads, flags, stream ids and payloads survive the round trip."""
    data = (
        frames.settings({Setting.MAX_FRAME_SIZE: 20_000, Setting.ENABLE_PUSH: 0})
        + frames.SETTINGS_ACK
        + frames.ping(b"12345678", ack=True)
        + frames.rst_stream(7, ErrorCode.CANCEL)
        + frames.window_update(5, 1000)
        + frames.goaway(9, ErrorCode.ENHANCE_YOUR_CALM, "calm")
    )
    settings, ack, ping, reset, update, goaway = parse_frames(data)
    assert list(frames.parse_settings(settings.payload)) == [(5, 20_000), (2, 0)]
    assert ack.is_ack
    assert not ack.payload
    assert ping.is_ack
    assert ping.payload == b"12345678"
    assert (reset.stream_id, reset.error) == (7, ErrorCode.CANCEL)
    assert (update.stream_id, update.payload) == (5, b"\0\0\x03\xe8")
    assert goaway.error is ErrorCode.ENHANCE_YOUR_CALM
    assert goaway.payload.endswith(b"calm")


@pytest.mark.parametrize(
    ("flags", "payload", "piece"),
    [
        (0, b"abc", b"abc"),
        (PADDED, b"\x02abc\0\0", b"abc"),
        (PADDED, b"\x00", b""),
        (PRIORITIZED, b"\0\0\0\x03\x10abc", b"abc"),
        (PADDED | PRIORITIZED, b"\x01\0\0\0\x03\x10abc\0", b"abc"),
    ],
)
def test_padding_and_priority_are_no_header_block(
    flags: int, payload: bytes, piece: bytes
) -> None:
    """Only what is between them is for HPACK."""
    assert first_piece(flags, 1, payload) == piece


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (PADDED, b"", ErrorCode.FRAME_SIZE_ERROR),
        (PADDED, b"\x02a", ErrorCode.PROTOCOL_ERROR),
        (PRIORITIZED, b"\0\0\0\x03", ErrorCode.PROTOCOL_ERROR),
        (PRIORITIZED, b"\0\0\0\x01\x10", ErrorCode.PROTOCOL_ERROR),
        (PADDED | PRIORITIZED, b"\x02\0\0\0\x03\x10a", ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_what_does_not_fit_is_a_fault(
    flags: int, payload: bytes, code: ErrorCode
) -> None:
    """Padding, priority, or a stream that depends on itself."""
    with pytest.raises(ConnectionFault) as raised:
        first_piece(flags, 1, payload)
    assert raised.value.code is code
