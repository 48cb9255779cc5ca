"""Answers on the wire: within the client's windows, in order, and ended by trailers."""

from __future__ import annotations

import struct

import pytest

from tests.frontends.express.wire import (
    Wire,
    data_frame,
    headers_frame,
    prefixed,
    request,
)
from tfs.core.errors import InvalidArgument
from tfs.frontends.http2 import frames, response
from tfs.frontends.http2.frames import (
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    ErrorCode,
    FrameType,
    Setting,
)
from tfs.frontends.http2.request_head import HttpRefusal


def test_settings_apply_in_order() -> None:
    """The last of a repeated one counts; unknown ones do not."""
    wire = Wire()
    settings = ((4, 10), (0xF0F0, 5), (5, 20_000), (4, 30))
    payload = b"".join(struct.pack(">HI", *each) for each in settings)
    wire.feed(frames.frame(FrameType.SETTINGS, 0, 0, payload) + request(1))
    wire.connection.sender.send_reply(wire.recorder.opened[1], bytes(100))
    assert len(wire.answer(1).body) == 30


def test_an_answer_stops_at_the_streams_window_and_goes_on() -> None:
    """What the client did not allow stays here; trailers come last."""
    wire = Wire(echo=False)
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 10}) + request(1))
    wire.connection.sender.send_reply(wire.recorder.opened[1], b"0123456789" * 3)
    assert len(wire.answer(1).body) == 10
    assert wire.connection.sender.queued_bytes == 25
    wire.feed(frames.window_update(1, 20))
    assert len(wire.answer(1).body) == 30
    assert not wire.answer(1).has_ended
    wire.feed(frames.window_update(1, 5))
    assert wire.answer(1).messages == [b"0123456789" * 3]
    assert wire.answer(1).status == "0"
    assert wire.connection.sender.queued_bytes == 0
    assert not wire.connection.streams


def test_an_answer_stops_at_the_connections_window() -> None:
    """65,535 bytes for all streams until the client says more."""
    wire = Wire()
    wire.feed(request(1) + request(3))
    for stream_id in (1, 3):
        wire.connection.sender.send_reply(
            wire.recorder.opened[stream_id], b"x" * 50_000
        )
    wire.sent()
    assert len(wire.answer(1).body) + len(wire.answer(3).body) == DEFAULT_WINDOW
    wire.feed(frames.window_update(0, 100_000))
    assert wire.answer(1).messages == wire.answer(3).messages == [b"x" * 50_000]


def test_settings_move_the_windows_of_open_streams() -> None:
    """A window may fall below zero; nothing is sent until it is positive again."""
    wire = Wire()
    wire.feed(request(1))
    wire.connection.sender.send_reply(wire.recorder.opened[1], b"x" * 100_000)
    wire.sent()
    assert len(wire.answer(1).body) == DEFAULT_WINDOW
    wire.feed(frames.window_update(0, 1 << 20))
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 100}))
    assert wire.recorder.opened[1].send_window == 100 - DEFAULT_WINDOW
    wire.feed(frames.window_update(1, DEFAULT_WINDOW - 100))
    assert len(wire.answer(1).body) == DEFAULT_WINDOW
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 20}))
    assert wire.answer(1).messages == [b"x" * 100_000]


def test_settings_that_overflow_a_window_close_the_connection() -> None:
    """An initial window that makes a stream's overflow is a connection error (RFC 9113
    section 6.9.2).
    """
    wire = Wire()
    wire.feed(
        headers_frame(1) + frames.window_update(1, LARGEST_WINDOW - DEFAULT_WINDOW)
    )
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: DEFAULT_WINDOW + 1}))
    assert wire.goaway() is ErrorCode.FLOW_CONTROL_ERROR


def test_data_frames_respect_the_clients_frame_size() -> None:
    """16,384 bytes unless it takes more."""
    wire = Wire()
    wire.feed(request(1))
    wire.connection.sender.send_reply(wire.recorder.opened[1], b"x" * 40_000)
    sizes = [len(f.payload) for f in wire.sent() if f.frame_type == FrameType.DATA]
    assert sizes == [16_384, 16_384, 40_005 - 2 * 16_384]


def test_an_empty_stream_ends_with_trailers_only() -> None:
    """A stream without a single message is still a valid answer."""
    wire = Wire()
    wire.feed(request(1))
    wire.connection.sender.send_end(wire.recorder.opened[1], response.OK_TRAILERS_BLOCK)
    answer = wire.answer(1)
    assert dict(answer.headers)[":status"] == "200"
    assert answer.status == "0"


def test_an_error_after_messages_travels_in_trailers() -> None:
    """The headers are out already; what was sent before arrives before."""
    wire = Wire()
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 6}) + request(1))
    stream = wire.recorder.opened[1]
    wire.connection.sender.send_message(stream, b"a")
    wire.connection.sender.send_message(stream, b"b")
    wire.connection.sender.send_error(stream, InvalidArgument("no"))
    assert not wire.answer(1).has_ended
    wire.feed(frames.window_update(1, 6))
    answer = wire.answer(1)
    assert answer.messages == [b"a", b"b"]
    assert dict(answer.trailers)["grpc-status"] == "3"
    assert wire.connection.sender.queued_bytes == 0


def test_an_answer_before_the_request_ended_is_followed_by_a_reset() -> None:
    """NO_ERROR tells the client to stop sending; what is under way is dropped."""
    wire = Wire(echo=True)
    wire.feed(headers_frame(1) + data_frame(1, prefixed(b"x" * 50)[:20], flags=0))
    wire.connection.sender.send_error(wire.recorder.opened[1], InvalidArgument("no"))
    wire.connection.state.budget.release_all(wire.recorder.opened[1])
    answer = wire.answer(1)
    assert (answer.status, answer.reset) == ("3", ErrorCode.NO_ERROR)
    wire.feed(data_frame(1, b"x" * 30) + request(3))
    assert wire.answer(3).messages == [b"ping"]
    assert wire.budget.used_bytes == 0


def test_http_refusals_are_a_status_and_a_sentence() -> None:
    """In headers alone, which HEAD may have as well, and for which no window is needed."""
    wire = Wire()
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + request(1))
    refusal = HttpRefusal(405, "gRPC wants POST")
    wire.connection.sender.send_refusal(wire.recorder.opened[1], refusal)
    answer = wire.answer(1)
    assert answer.headers == [
        (":status", "405"),
        ("allow", "POST"),
        ("grpc-message", "gRPC wants POST"),
    ]
    assert answer.has_ended


def test_sending_on_a_stream_that_is_over_is_our_own_fault() -> None:
    """It raises, and the wire shows nothing."""
    wire = Wire(echo=True)
    wire.feed(request(1))
    wire.sent()
    stream = wire.recorder.opened[1]
    with pytest.raises(RuntimeError, match="has ended"):
        wire.connection.sender.send_message(stream, b"x")
    with pytest.raises(RuntimeError, match="has ended"):
        wire.connection.sender.send_end(stream, b"")
    with pytest.raises(RuntimeError, match="has ended"):
        wire.connection.sender.send_error(stream, InvalidArgument("x"))
    assert wire.sent() == []
