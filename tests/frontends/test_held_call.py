"""A call's first frames, and what grpcio gets of them."""

from __future__ import annotations

import pytest

from tests.frontends.express.wire import data_frame, headers_frame, parse_frames
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PADDED,
    PRIORITIZED,
    ConnectionFault,
    FrameType,
)
from tfs.frontends.rpc.grpcio.held_call import HeldCall


def held(*sent: bytes) -> HeldCall:
    """Returns a call with frames of headers, the last one perhaps with more behind."""
    call = HeldCall(1)
    for each in sent:
        word, flags, _ = frames.unpack_head(each, 0)
        call.note_frame(flags, word >> 8)
        assert not call.is_whole
        call.data += each
    return call


def continuation(piece: bytes, flags: int = END_HEADERS) -> bytes:
    return frames.frame(FrameType.CONTINUATION, flags, 1, piece)


def test_a_block_is_what_its_frames_hold_together() -> None:
    """Without the padding and the priority of the first; others have none."""
    flags = PADDED | PRIORITIZED
    first = headers_frame(1, b"\x01\0\0\0\x03\x10abc\0", flags)
    call = held(first, continuation(b"", 0), continuation(b"de") + data_frame(1, b"x"))
    assert call.is_whole
    assert call.block() == b"abcde"
    assert call.body() == data_frame(1, b"x")
    assert held(headers_frame(1, b"abc")).block() == b"abc"


def test_padding_that_does_not_fit_is_a_fault() -> None:
    """The block cannot be known."""
    with pytest.raises(ConnectionFault):
        held(headers_frame(1, b"\x09abc", END_HEADERS | PADDED)).block()


@pytest.mark.parametrize("ends", [0, END_STREAM])
@pytest.mark.parametrize("num_bytes", [0, 16_384, 16_385, 50_000])
def test_long_headers_come_in_frames_that_grpcio_takes(
    num_bytes: int, ends: int
) -> None:
    """16 KB each; the first says whether the request ends, the last that they do."""
    call = held(headers_frame(1, b"abc", END_HEADERS | ends) + data_frame(1, b"x"))
    *sent, body = parse_frames(bytes(call.opened(b"h" * num_bytes)))
    assert b"".join(each.payload for each in sent) == b"h" * num_bytes
    assert max(len(each.payload) for each in sent) <= 16_384
    assert [each.frame_type for each in sent] == [
        FrameType.HEADERS,
        *[FrameType.CONTINUATION] * (len(sent) - 1),
    ]
    assert [each.flags & END_HEADERS for each in sent] == [
        *[0] * (len(sent) - 1),
        END_HEADERS,
    ]
    assert sent[0].flags & END_STREAM == ends == call.ends_stream
    assert body.payload == b"x"
    assert len(body.payload) + HEAD_SIZE == len(call.body())
