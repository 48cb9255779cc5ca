"""Frames on the wire do what the table of stream states says, and faults have their codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.frontends.express.wire import (
    BLOCK,
    Wire,
    data_frame,
    headers_frame,
    request,
)
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import (
    END_HEADERS,
    END_STREAM,
    LARGEST_WINDOW,
    PADDED,
    ErrorCode,
    FrameType,
    Setting,
)
from tfs.frontends.http2.stream import (
    Reaction,
    Signal,
    Step,
    StreamState,
    step,
)


def _idle(wire: Wire) -> int:
    return 9


def _open(wire: Wire) -> int:
    wire.feed(headers_frame(9) + data_frame(9, b"\0", flags=0))
    return 9


def _requested(wire: Wire) -> int:
    wire.feed(request(9))
    return 9


def _closed(wire: Wire) -> int:
    wire.feed(request(9))
    wire.reply(wire.recorder.opened[9], b"pong")
    return 9


def _closed_by_peer(wire: Wire) -> int:
    wire.feed(headers_frame(9) + frames.rst_stream(9, ErrorCode.CANCEL))
    return 9


def _reset(wire: Wire) -> int:
    wire.feed(headers_frame(9))
    wire.connection.sender.reset(wire.recorder.opened[9], ErrorCode.CANCEL)
    return 9


REACHED: dict[str, tuple[StreamState, Callable[[Wire], int]]] = {
    "idle": (StreamState.IDLE, _idle),
    "open": (StreamState.OPEN, _open),
    "requested": (StreamState.REQUESTED, _requested),
    "closed": (StreamState.CLOSED, _closed),
    "closed by the peer": (StreamState.CLOSED, _closed_by_peer),
    "reset": (StreamState.RESET, _reset),
}


# Of frames that no state depends on.
IGNORED = Step(Reaction.IGNORE)
FAULT = Step(Reaction.CLOSE_CONNECTION, error=ErrorCode.PROTOCOL_ERROR)

FRAMES: dict[str, tuple[Signal | Step, Callable[[int], bytes]]] = {
    "DATA": (Signal.DATA, lambda i: data_frame(i, b"\0" * 5, flags=0)),
    "DATA+END": (Signal.DATA_END, lambda i: data_frame(i, b"\0" * 4)),
    "HEADERS": (Signal.HEADERS, lambda i: headers_frame(i, BLOCK)),
    "HEADERS+END": (
        Signal.HEADERS_END,
        lambda i: headers_frame(i, BLOCK, END_HEADERS | END_STREAM),
    ),
    "PRIORITY": (
        IGNORED,
        lambda i: frames.frame(FrameType.PRIORITY, 0, i, b"\0\0\0\0\x10"),
    ),
    "RST_STREAM": (
        Signal.RST_STREAM,
        lambda i: frames.rst_stream(i, ErrorCode.CANCEL),
    ),
    "SETTINGS": (
        FAULT,
        lambda i: frames.frame(FrameType.SETTINGS, 0, i, b""),
    ),
    "PUSH_PROMISE": (
        FAULT,
        lambda i: frames.frame(FrameType.PUSH_PROMISE, END_HEADERS, i, b"\0\0\0\x02"),
    ),
    "PING": (
        FAULT,
        lambda i: frames.frame(FrameType.PING, 0, i, b"12345678"),
    ),
    "GOAWAY": (
        FAULT,
        lambda i: frames.frame(FrameType.GOAWAY, 0, i, b"\0" * 8),
    ),
    "WINDOW_UPDATE": (
        Signal.WINDOW_UPDATE,
        lambda i: frames.window_update(i, 100),
    ),
    "CONTINUATION": (
        FAULT,
        lambda i: frames.frame(FrameType.CONTINUATION, END_HEADERS, i, BLOCK),
    ),
    "extension": (
        IGNORED,
        lambda i: frames.frame(0xBE, 0xFF, i, b"grease"),
    ),
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("state", REACHED)
def test_each_frame_in_each_state_does_what_the_table_says(
    state: str, kind: str
) -> None:
    """The wire shows the reaction that the table names, and serves on if it may."""
    wire = Wire()
    expected_state, reach = REACHED[state]
    stream_id = reach(wire)
    assert wire.connection.state.table.state_of(stream_id) is expected_state
    wire.sent()
    signal, build = FRAMES[kind]
    verdict = signal if isinstance(signal, Step) else step(expected_state, signal)
    wire.feed(build(stream_id))
    sent = wire.sent()
    if verdict.reaction is Reaction.CLOSE_CONNECTION:
        assert wire.connection.is_closed
        assert sent[-1].error is verdict.error
        return
    assert not wire.connection.is_closed
    resets = [frame.error for frame in sent if frame.frame_type == FrameType.RST_STREAM]
    if verdict.reaction is Reaction.RESET_STREAM:
        assert resets == [verdict.error]
        assert stream_id not in wire.connection.streams
    elif verdict.reaction is Reaction.IGNORE:
        assert sent == []
    wire.recorder.answer = wire.reply
    wire.feed(request(stream_id + 2))
    assert wire.answer(stream_id + 2).messages == [b"ping"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (headers_frame(2), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(2, 1), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, LARGEST_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.frame(FrameType.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame_head(FrameType.DATA, 0, 1, 300_000), ErrorCode.FRAME_SIZE_ERROR),
        (
            frames.frame_head(FrameType.HEADERS, 4, 1, 70_000),
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
        (
            headers_frame(1, b"\xff" + BLOCK, END_HEADERS | PADDED),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (headers_frame(1, b"", END_HEADERS | PADDED), ErrorCode.FRAME_SIZE_ERROR),
        (
            headers_frame(1, b"\0\0\0\x01\0" + BLOCK, END_HEADERS | frames.PRIORITIZED),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (
            headers_frame(1) + data_frame(1, b"\x05abc", flags=PADDED),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (
            headers_frame(1) + data_frame(1, b"", flags=PADDED),
            ErrorCode.FRAME_SIZE_ERROR,
        ),
        # RFC 9113 sections 5.1.1 and 5.1: what was skipped, and what is over.
        (headers_frame(3) + headers_frame(1), ErrorCode.STREAM_CLOSED),
        (
            headers_frame(5)
            + frames.rst_stream(5, ErrorCode.CANCEL)
            + headers_frame(5),
            ErrorCode.STREAM_CLOSED,
        ),
        (
            frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        # RFC 9113 section 6.5.2.
        (frames.settings({Setting.MAX_FRAME_SIZE: 16_383}), ErrorCode.PROTOCOL_ERROR),
        (frames.settings({Setting.MAX_FRAME_SIZE: 1 << 24}), ErrorCode.PROTOCOL_ERROR),
        (frames.settings({Setting.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_broken_rule_closes_the_connection_with_its_code(
    data: bytes, code: ErrorCode
) -> None:
    """Faults that are not of one stream."""
    wire = Wire()
    wire.feed(data)
    assert wire.goaway() is code
    assert wire.connection.is_closed
    assert not wire.feed(request(11))
    assert wire.sent() == []


def test_a_reserved_bit_is_ignored() -> None:
    """The reserved bit of a stream id means nothing (RFC 9113 section 4.1)."""
    wire = Wire(echo=True)
    data = bytearray(request(1))
    size = frames.HEAD_SIZE + len(BLOCK)
    data[5] |= 0x80
    data[size + 5] |= 0x80
    wire.feed(bytes(data))
    assert wire.answer(1).messages == [b"ping"]


def test_a_window_update_of_zero_resets_its_stream() -> None:
    """A stream error, as RFC 9113 section 6.9 has it."""
    wire = Wire()
    wire.feed(headers_frame(1) + frames.window_update(1, 0))
    assert wire.answer(1).reset is ErrorCode.PROTOCOL_ERROR
    assert wire.events[-1] == ("reset", 1)


def test_a_stream_window_that_overflows_resets_its_stream() -> None:
    """A stream's window beyond the largest is an error of that stream alone."""
    wire = Wire()
    wire.feed(headers_frame(1) + frames.window_update(1, LARGEST_WINDOW))
    assert wire.answer(1).reset is ErrorCode.FLOW_CONTROL_ERROR
