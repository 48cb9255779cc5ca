"""The protocol without sockets: what a client sends, and what it gets for it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import pytest
from hpack import Encoder

from tests.frontends.express.wire import (
    HELLO,
    Wire,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
    request,
)
from tfs.core.errors import InvalidArgument, ResourceExhausted, Unavailable
from tfs.frontends.rpc.express.http2 import frames, response
from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.http2.flow_control import ReceiveBudget, ReceiveWindow
from tfs.frontends.rpc.express.http2.frames import (
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    LARGEST_WINDOW,
    PADDED,
    PREFACE,
    ErrorCode,
    FrameType,
    Setting,
)
from tfs.frontends.rpc.express.http2.header_block import MAX_LARGE_BLOCKS
from tfs.frontends.rpc.express.http2.request_head import HttpRefusal
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_state import (
    Reaction,
    Signal,
    StreamState,
    step,
)

# -- opening ---------------------------------------------------------------------------


def test_a_connection_opens_with_settings() -> None:
    """The server's SETTINGS are the first it says, once it knows to whom."""
    wire = Wire(hello=False)
    assert wire.sent() == []
    wire.feed(PREFACE)
    (settings,) = wire.sent()
    values = dict(frames.parse_settings(settings.payload))
    assert values[Setting.MAX_CONCURRENT_STREAMS] == 1024
    assert values[Setting.INITIAL_WINDOW_SIZE] == LARGEST_WINDOW
    wire.feed(HELLO.removeprefix(PREFACE))
    assert [sent.is_ack for sent in wire.sent()] == [True]
    assert wire.connection.is_established


def test_the_preface_may_arrive_byte_by_byte() -> None:
    """Nothing is decided before it is whole."""
    wire = Wire(hello=False)
    for byte in HELLO:
        wire.feed(bytes((byte,)))
    assert wire.sent_types() == ["SETTINGS", "SETTINGS"]
    assert not wire.connection.is_closed


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"POST", b"HEAD /x"])
def test_an_http_1_client_gets_an_http_1_answer(data: bytes) -> None:
    """Somebody pointed a browser at the port: not a byte of HTTP/2 comes before it."""
    wire = Wire(hello=False)
    for byte in data:
        wire.feed(bytes((byte,)))
    assert bytes(wire.connection.out[0]).startswith(b"HTTP/1.1 505")
    assert len(wire.connection.out) == 1
    assert wire.connection.is_closed


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00", b"PRI * HTTP/3.0\r\n", b"\0" * 24]
)
def test_anything_else_before_the_preface_closes(data: bytes) -> None:
    """Whoever opens with a TLS hello or noise is cut off."""
    wire = Wire(hello=False)
    wire.feed(data)
    assert wire.goaway() is ErrorCode.PROTOCOL_ERROR


def test_the_first_frame_must_be_settings() -> None:
    """Another first frame than SETTINGS is a connection error (RFC 9113 section 3.4)."""
    wire = Wire(hello=False)
    wire.feed(PREFACE + request(1))
    assert wire.goaway() is ErrorCode.PROTOCOL_ERROR
    assert wire.events == []


# -- requests ----------------------------------------------------------------------


def test_a_request_in_two_frames_is_one_event() -> None:
    """The ordinary request takes the short path, cached head or not."""
    wire = Wire(echo=True)
    for stream_id in (1, 3, 5):
        wire.feed(request(stream_id))
        assert wire.events == [
            ("open", stream_id, "/tfs.test.Echo/Say"),
            ("request", stream_id, b"ping"),
        ]
        answer = wire.answer(stream_id)
        assert answer.messages == [b"ping"]
        assert answer.status == "0"
        assert answer.has_ended
    assert wire.connection.streams == {}
    assert wire.connection.is_idle


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 10, 14, 64])
def test_any_cut_of_the_bytes_means_the_same(size: int) -> None:
    """TCP may deliver frames in pieces of any size."""
    data = b"".join(
        request(stream_id, b"x" * stream_id) for stream_id in range(1, 40, 2)
    )
    wire = Wire(echo=True)
    for index in range(0, len(data), size):
        wire.feed(data[index : index + size])
    for stream_id in range(1, 40, 2):
        assert wire.answer(stream_id).messages == [b"x" * stream_id]
    assert wire.connection.stuck_since_s is None


def test_a_message_may_be_cut_into_many_frames() -> None:
    """Frames may cut the prefix, have padding, and end with an empty one."""
    wire = Wire(echo=True)
    data = prefixed(b"hello world")
    wire.feed(headers_frame(1))
    for byte in data[:7]:
        wire.feed(data_frame(1, bytes((byte,)), flags=0))
    wire.feed(data_frame(1, b"\x03" + data[7:10] + b"\0\0\0", flags=PADDED))
    wire.feed(data_frame(1, data[10:], flags=0))
    wire.feed(data_frame(1, b""))
    assert wire.answer(1).messages == [b"hello world"]
    assert wire.budget.used_bytes == wire.connection._window.size


def test_padding_and_priority_around_headers_are_skipped() -> None:
    """Both are legal and carry nothing."""
    wire = Wire(echo=True)
    block = literal_block(grpc_headers())
    payload = b"\x04" + b"\0\0\0\0\x10" + block + b"\0\0\0\0"
    wire.feed(
        headers_frame(1, payload, END_HEADERS | PADDED | frames.PRIORITIZED)
        + data_frame(1, prefixed(b"x"))
    )
    assert wire.answer(1).messages == [b"x"]


@pytest.mark.parametrize("size", [1, 10, 100])
def test_a_header_block_may_continue(size: int) -> None:
    """HEADERS and CONTINUATION frames make one block."""
    wire = Wire(ConnectionLimits(max_continuations=200), echo=True)
    block = literal_block(grpc_headers())
    parts = [block[index : index + size] for index in range(0, len(block), size)]
    wire.feed(headers_frame(1, parts[0], flags=0 if len(parts) > 1 else END_HEADERS))
    for index, part in enumerate(parts[1:], start=2):
        flags = END_HEADERS if index == len(parts) else 0
        wire.feed(frames.frame(FrameType.CONTINUATION, flags, 1, part))
    wire.feed(data_frame(1, prefixed(b"x")))
    assert wire.answer(1).messages == [b"x"]


@pytest.mark.parametrize(
    "intruder",
    [
        frames.ping(b"12345678"),
        data_frame(1, b"x"),
        headers_frame(3),
        frames.frame(FrameType.CONTINUATION, END_HEADERS, 3, b""),
        frames.frame(0xEE, 0, 0, b""),
    ],
)
def test_nothing_may_come_between_a_block_and_its_continuation(intruder: bytes) -> None:
    """RFC 9113 section 6.10: any other frame is a connection error."""
    wire = Wire()
    wire.feed(headers_frame(1, literal_block(grpc_headers())[:20], flags=0) + intruder)
    assert wire.goaway() is ErrorCode.PROTOCOL_ERROR


def test_several_messages_come_one_by_one() -> None:
    """Streaming requests bring an event per message and one for the end."""
    wire = Wire()
    wire.feed(
        headers_frame(1)
        + data_frame(1, prefixed(b"a") + prefixed(b"b", compressed=True), flags=0)
        + data_frame(1, prefixed(b""), flags=END_STREAM)
    )
    assert wire.events[1:] == [
        ("message", 1, b"a", False),
        ("message", 1, b"b", True),
        ("message", 1, b"", False),
        ("end", 1),
    ]


def test_trailers_end_a_request() -> None:
    """A second header block with END_STREAM; its headers are decoded for HPACK."""
    wire = Wire()
    wire.feed(headers_frame(1) + data_frame(1, prefixed(b"a"), flags=0))
    trailers = wire.encoder.encode([("x-checksum", "1")])
    wire.feed(headers_frame(1, trailers, END_HEADERS | END_STREAM))
    assert wire.events[-1] == ("end", 1)
    later = wire.encoder.encode([*grpc_headers(), ("x-checksum", "1")])
    wire.feed(headers_frame(3, later))
    assert wire.events == [("open", 3, "/tfs.test.Echo/Say")]


@pytest.mark.parametrize("name", [":method", "Upper", "connection", "a b"])
def test_malformed_trailers_reset_their_stream_only(name: str) -> None:
    """RFC 9113 section 8.1: no pseudo-headers there, and no HTTP/1."""
    wire = Wire()
    wire.feed(headers_frame(1) + data_frame(1, prefixed(b"a"), flags=0))
    wire.feed(
        headers_frame(1, literal_block([(name, "x")]), END_HEADERS | END_STREAM)
        + request(3)
    )
    events = wire.events
    assert ("end", 1) not in events
    assert ("reset", 1) in events
    assert events[-1][:2] == ("request", 3)
    assert wire.answer(1).reset is ErrorCode.PROTOCOL_ERROR


def test_a_request_without_a_message_ends_without_one() -> None:
    """END_STREAM on HEADERS ends a request that brings no message."""
    wire = Wire()
    wire.feed(headers_frame(1, flags=END_HEADERS | END_STREAM))
    assert wire.events == [("open", 1, "/tfs.test.Echo/Say"), ("end", 1)]


def test_a_message_cut_off_by_the_end_is_a_fault() -> None:
    """The stream ended, the message did not."""
    wire = Wire()
    wire.feed(headers_frame(1) + data_frame(1, prefixed(b"abcdef")[:-2]))
    assert wire.events[-1] == ("fault", 1, "INTERNAL")
    assert wire.answer(1).status == "13"


def test_too_long_a_message_fails_its_call_only() -> None:
    """RESOURCE_EXHAUSTED at once; what still arrives of it is dropped."""
    wire = Wire(ConnectionLimits(max_message_bytes=100), echo=True)
    wire.feed(headers_frame(1) + data_frame(1, prefixed(b"x" * 101), flags=0))
    assert wire.events[-1] == ("fault", 1, "RESOURCE_EXHAUSTED")
    answer = wire.answer(1)
    assert (answer.status, answer.reset) == ("8", ErrorCode.NO_ERROR)
    wire.feed(data_frame(1, b"x" * 1000, flags=0))
    wire.feed(data_frame(1, prefixed(b"x" * 101)))  # by the short path's conditions
    wire.feed(request(3))
    assert wire.answer(3).messages == [b"ping"]
    assert wire.budget.used_bytes == wire.connection._window.size


def test_content_length_must_be_true() -> None:
    """RFC 9113 section 8.1.1: a body of another length is malformed."""
    wire = Wire(echo=True)
    right = literal_block(grpc_headers(("content-length", "9")))
    wrong = literal_block(grpc_headers(("content-length", "10")))
    wire.feed(headers_frame(1, right) + data_frame(1, prefixed(b"ping")))
    assert wire.answer(1).messages == [b"ping"]
    wire.feed(headers_frame(3, wrong) + data_frame(3, prefixed(b"ping")))
    assert wire.answer(3).reset is ErrorCode.PROTOCOL_ERROR
    wire.feed(headers_frame(5, wrong, END_HEADERS | END_STREAM))
    assert wire.answer(5).reset is ErrorCode.PROTOCOL_ERROR


def test_a_malformed_head_resets_its_stream_only() -> None:
    """Duplicate and upper-case headers do not cost others their connection."""
    wire = Wire(echo=True)
    wire.feed(headers_frame(1, literal_block(grpc_headers(("Upper", "x")))))
    assert wire.answer(1).reset is ErrorCode.PROTOCOL_ERROR
    wire.feed(data_frame(1, prefixed(b"late")))
    wire.feed(request(3))
    assert wire.answer(3).messages == [b"ping"]


def test_a_huge_header_list_fails_the_call_not_the_connection() -> None:
    """The client's metadata is its own problem; HPACK stays in step."""
    wire = Wire(ConnectionLimits(max_header_list_bytes=2000), echo=True)
    entry = ("x-large", "v" * 1000)
    wire.feed(headers_frame(1, wire.encoder.encode([*grpc_headers(), entry])))
    wire.feed(headers_frame(3, wire.encoder.encode([*grpc_headers(), entry, entry])))
    assert isinstance(wire.recorder.opened[1].head.refusal, type(None))
    refusal = wire.recorder.opened[3].head.refusal
    assert "headers" in str(refusal)
    wire.feed(headers_frame(5, wire.encoder.encode(grpc_headers())))
    assert wire.recorder.opened[5].head.refusal is None


def test_an_hpack_error_closes_the_connection() -> None:
    """The contexts are out of step for good."""
    wire = Wire()
    wire.feed(headers_frame(1, b"\x80"))
    assert wire.goaway() is ErrorCode.COMPRESSION_ERROR
    assert wire.connection.is_closed


def test_a_block_is_never_taken_from_a_stale_cache() -> None:
    """The same bytes mean another header once the table has moved."""
    wire = Wire()
    base = literal_block(grpc_headers())
    wire.feed(headers_frame(1, base + b"\x40\x03x-a\x01A"))  # index 62: x-a: A
    by_index = base + b"\xbe"
    wire.feed(headers_frame(3, by_index) + headers_frame(5, by_index))
    wire.feed(headers_frame(7, base + b"\x40\x03x-b\x01B"))  # now 62 is x-b: B
    wire.feed(headers_frame(9, by_index))
    heads = [wire.recorder.opened[stream_id].head.metadata for stream_id in (3, 5, 9)]
    assert heads == [(("x-a", "A"),), (("x-a", "A"),), (("x-b", "B"),)]


# -- every pair of state and frame, on the wire -----------------------------------------


def _idle(wire: Wire) -> int:
    return 9


def _open(wire: Wire) -> int:
    wire.feed(headers_frame(9) + data_frame(9, b"\0", flags=0))
    return 9


def _half_closed_remote(wire: Wire) -> int:
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
    wire.connection.reset(wire.recorder.opened[9], ErrorCode.CANCEL)
    return 9


REACHED: dict[str, tuple[StreamState, Callable[[Wire], int]]] = {
    "idle": (StreamState.IDLE, _idle),
    "open": (StreamState.OPEN, _open),
    "half closed (remote)": (StreamState.HALF_CLOSED_REMOTE, _half_closed_remote),
    "closed": (StreamState.CLOSED, _closed),
    "closed by the peer": (StreamState.CLOSED, _closed_by_peer),
    "reset": (StreamState.RESET, _reset),
}
BLOCK = literal_block(grpc_headers())
FRAMES: dict[str, tuple[Signal, Callable[[int], bytes]]] = {
    "DATA": (Signal.RECEIVE_DATA, lambda i: data_frame(i, b"\0" * 5, flags=0)),
    "DATA+END": (Signal.RECEIVE_DATA_END, lambda i: data_frame(i, b"\0" * 4)),
    "HEADERS": (Signal.RECEIVE_HEADERS, lambda i: headers_frame(i, BLOCK)),
    "HEADERS+END": (
        Signal.RECEIVE_HEADERS_END,
        lambda i: headers_frame(i, BLOCK, END_HEADERS | END_STREAM),
    ),
    "PRIORITY": (
        Signal.RECEIVE_PRIORITY,
        lambda i: frames.frame(FrameType.PRIORITY, 0, i, b"\0\0\0\0\x10"),
    ),
    "RST_STREAM": (
        Signal.RECEIVE_RST_STREAM,
        lambda i: frames.rst_stream(i, ErrorCode.CANCEL),
    ),
    "SETTINGS": (
        Signal.RECEIVE_SETTINGS,
        lambda i: frames.frame(FrameType.SETTINGS, 0, i, b""),
    ),
    "PUSH_PROMISE": (
        Signal.RECEIVE_PUSH_PROMISE,
        lambda i: frames.frame(FrameType.PUSH_PROMISE, END_HEADERS, i, b"\0\0\0\x02"),
    ),
    "PING": (
        Signal.RECEIVE_PING,
        lambda i: frames.frame(FrameType.PING, 0, i, b"12345678"),
    ),
    "GOAWAY": (
        Signal.RECEIVE_GOAWAY,
        lambda i: frames.frame(FrameType.GOAWAY, 0, i, b"\0" * 8),
    ),
    "WINDOW_UPDATE": (
        Signal.RECEIVE_WINDOW_UPDATE,
        lambda i: frames.window_update(i, 100),
    ),
    "CONTINUATION": (
        Signal.RECEIVE_CONTINUATION,
        lambda i: frames.frame(FrameType.CONTINUATION, END_HEADERS, i, BLOCK),
    ),
    "extension": (
        Signal.RECEIVE_EXTENSION,
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
    assert wire.connection._table.state_of(stream_id) is expected_state
    wire.sent()
    signal, build = FRAMES[kind]
    verdict = step(expected_state, signal)
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
        (headers_frame(3) + headers_frame(1), ErrorCode.PROTOCOL_ERROR),
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


# -- sending and its flow control ------------------------------------------------------


def test_an_answer_stops_at_the_streams_window_and_goes_on() -> None:
    """What the client did not allow stays here; trailers come last."""
    wire = Wire(echo=False)
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 10}) + request(1))
    wire.connection.send_reply(wire.recorder.opened[1], b"0123456789" * 3)
    assert len(wire.answer(1).body) == 10
    assert wire.connection.queued_bytes == 25
    wire.feed(frames.window_update(1, 20))
    assert len(wire.answer(1).body) == 30
    assert not wire.answer(1).has_ended
    wire.feed(frames.window_update(1, 5))
    assert wire.answer(1).messages == [b"0123456789" * 3]
    assert wire.answer(1).status == "0"
    assert wire.connection.queued_bytes == 0
    assert wire.connection.is_idle


def test_an_answer_stops_at_the_connections_window() -> None:
    """65,535 bytes for all streams until the client says more."""
    wire = Wire()
    wire.feed(request(1) + request(3))
    for stream_id in (1, 3):
        wire.connection.send_reply(wire.recorder.opened[stream_id], b"x" * 50_000)
    wire.sent()
    assert len(wire.answer(1).body) + len(wire.answer(3).body) == DEFAULT_WINDOW
    wire.feed(frames.window_update(0, 100_000))
    assert wire.answer(1).messages == wire.answer(3).messages == [b"x" * 50_000]


def test_large_answers_take_turns() -> None:
    """A small answer is not held up by a large one that came first."""
    wire = Wire()
    wire.feed(frames.window_update(0, 10 << 20))
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 10 << 20}))
    wire.feed(request(1) + request(3))
    wire.connection.send_reply(wire.recorder.opened[1], b"x" * (4 << 20))
    wire.connection.send_reply(wire.recorder.opened[3], b"small")
    wire.connection.fill(300_000)
    assert not wire.recorder.opened[3].outbox
    assert wire.recorder.opened[1].outbox


def test_settings_move_the_windows_of_open_streams() -> None:
    """A window may fall below zero; nothing is sent until it is positive again."""
    wire = Wire()
    wire.feed(request(1))
    wire.connection.send_reply(wire.recorder.opened[1], b"x" * 100_000)
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
    wire.connection.send_reply(wire.recorder.opened[1], b"x" * 40_000)
    sizes = [len(f.payload) for f in wire.sent() if f.frame_type == FrameType.DATA]
    assert sizes == [16_384, 16_384, 40_005 - 2 * 16_384]


def test_messages_of_a_stream_are_sent_in_order_and_end_with_trailers() -> None:
    """Server streaming: headers once, messages, trailers."""
    wire = Wire()
    wire.feed(request(1))
    stream = wire.recorder.opened[1]
    for body in (b"a", b"", b"c" * 70_000):
        wire.connection.send_message(stream, body)
    wire.connection.send_end(stream, response.OK_TRAILERS_BLOCK)
    wire.sent()
    wire.feed(frames.window_update(0, 1 << 20) + frames.window_update(1, 1 << 20))
    answer = wire.answer(1)
    assert answer.messages == [b"a", b"", b"c" * 70_000]
    assert dict(answer.trailers) == {"grpc-status": "0"}


def test_an_empty_stream_ends_with_trailers_only() -> None:
    """A stream without a single message is still a valid answer."""
    wire = Wire()
    wire.feed(request(1))
    wire.connection.send_end(wire.recorder.opened[1], response.OK_TRAILERS_BLOCK)
    answer = wire.answer(1)
    assert dict(answer.headers)[":status"] == "200"
    assert answer.status == "0"


def test_an_error_travels_trailers_only() -> None:
    """One header block, and the stream is over."""
    wire = Wire()
    wire.feed(request(1))
    wire.connection.send_error(
        wire.recorder.opened[1], Unavailable("full", retry_after_s=0.5)
    )
    answer = wire.answer(1)
    assert answer.status == "14"
    assert answer.has_ended
    assert answer.trailers == []
    assert wire.connection.is_idle


def test_an_error_after_messages_travels_in_trailers() -> None:
    """The headers are out already; what was sent before arrives before."""
    wire = Wire()
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 6}) + request(1))
    stream = wire.recorder.opened[1]
    wire.connection.send_message(stream, b"a")
    wire.connection.send_message(stream, b"b")
    wire.connection.send_error(stream, InvalidArgument("no"))
    assert not wire.answer(1).has_ended
    wire.feed(frames.window_update(1, 6))
    answer = wire.answer(1)
    assert answer.messages == [b"a", b"b"]
    assert dict(answer.trailers)["grpc-status"] == "3"
    assert wire.connection.queued_bytes == 0


def test_an_answer_before_the_request_ended_is_followed_by_a_reset() -> None:
    """NO_ERROR tells the client to stop sending; what is under way is dropped."""
    wire = Wire(echo=True)
    wire.feed(headers_frame(1) + data_frame(1, prefixed(b"x" * 50)[:20], flags=0))
    wire.connection.send_error(wire.recorder.opened[1], InvalidArgument("no"))
    wire.connection.release(wire.recorder.opened[1])
    answer = wire.answer(1)
    assert (answer.status, answer.reset) == ("3", ErrorCode.NO_ERROR)
    wire.feed(data_frame(1, b"x" * 30) + request(3))
    assert wire.answer(3).messages == [b"ping"]
    assert wire.budget.used_bytes == wire.connection._window.size


def test_http_refusals_are_whole_http_answers() -> None:
    """Status, type and a sentence; to HEAD and without a window, the status alone."""
    wire = Wire()
    wire.feed(request(1) + request(3))
    wire.connection.send_refusal(wire.recorder.opened[1], HttpRefusal(415, "no gRPC"))
    assert dict(wire.answer(1).headers)[":status"] == "415"
    assert wire.answer(1).body == b"no gRPC\n"
    wire.connection.send_refusal(
        wire.recorder.opened[3], HttpRefusal(405, "no", has_body=False)
    )
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + request(5))
    wire.connection.send_refusal(wire.recorder.opened[5], HttpRefusal(405, "no"))
    for stream_id in (3, 5):
        answer = wire.answer(stream_id)
        assert answer.headers == [(":status", "405"), ("allow", "POST")]
        assert answer.has_ended
        assert answer.body == b""


def test_sending_on_a_stream_that_is_over_is_our_own_fault() -> None:
    """It raises, and the wire shows nothing."""
    wire = Wire(echo=True)
    wire.feed(request(1))
    wire.sent()
    stream = wire.recorder.opened[1]
    with pytest.raises(RuntimeError, match="SEND_DATA"):
        wire.connection.send_message(stream, b"x")
    with pytest.raises(RuntimeError, match="SEND_END"):
        wire.connection.send_end(stream, b"")
    with pytest.raises(RuntimeError, match="SEND_END"):
        wire.connection.send_error(stream, InvalidArgument("x"))
    assert wire.sent() == []


# -- receive windows -------------------------------------------------------------------


def test_the_window_is_refilled_while_a_large_message_arrives() -> None:
    """A client that respects the window can send any message that is allowed."""
    wire = Wire(ConnectionLimits(preferred_window=DEFAULT_WINDOW), echo=True)
    data = prefixed(b"x" * 500_000)
    wire.feed(headers_frame(1))
    window = DEFAULT_WINDOW
    index = 0
    while index < len(data):
        size = min(window, 16_384, len(data) - index)
        assert size > 0, "stuck without a window"
        last = index + size == len(data)
        wire.feed(data_frame(1, data[index : index + size], END_STREAM if last else 0))
        window -= size
        index += size
        for sent in wire.sent():
            if sent.frame_type == FrameType.WINDOW_UPDATE:
                assert sent.stream_id == 0
                window += int.from_bytes(sent.payload, "big")
    assert wire.events[-1] == ("end", 1)
    assert wire.budget.used_bytes == wire.connection._window.size


def test_reads_of_uploads_end_where_frames_do() -> None:
    """Four in turn, whose frames are alike: few of them are taken in two parts."""
    wire = Wire(echo=True)
    streams = (1, 3, 5, 7)
    wire.feed(b"".join(map(headers_frame, streams)))
    message = prefixed(bytes(600_000))
    sizes = range(0, len(message), 16_384)
    data = b"".join(
        data_frame(
            stream_id,
            message[begin : begin + 16_384],
            END_STREAM if begin == sizes[-1] else 0,
        )
        for begin in sizes
        for stream_id in streams
    )
    connection = wire.connection
    connection._window.size = len(data)  # as it is after a while
    index = num_reads = num_partial = 0
    while index < len(data):
        size = 262_144
        if connection.frame_bytes:
            size = connection.fitting_bytes(size)
            assert 131_072 <= size <= 262_144
        wire.feed(data[index : index + size])
        index += size
        num_reads += 1
        num_partial += connection._data_left > 0
    assert num_reads == 10
    assert num_partial <= 2  # the first read, and one with the ends of messages
    assert [event for event in wire.events if event[0] == "end"] == [
        ("end", stream_id) for stream_id in streams
    ]


def test_uploads_arrive_whole_whatever_is_among_their_frames() -> None:
    """Frames that are alike are taken together only as far as nothing else comes."""
    for seed in range(40):
        rng = random.Random(seed)
        messages = {
            stream_id: rng.randbytes(rng.randrange(1000, 5000))
            for stream_id in (1, 3, 5, 7)
        }
        left = {stream_id: prefixed(each) for stream_id, each in messages.items()}
        sent = [headers_frame(stream_id) for stream_id in left]
        while left:
            stream_id = rng.choice(list(left))
            size = rng.choice((100, 100, 100, 100, 101))
            part, rest = left[stream_id][:size], left[stream_id][size:]
            flags = 0 if rest else END_STREAM
            among = rng.randrange(40)
            if among == 0:
                sent.append(frames.ping(b"12345678"))
            elif among == 1:
                sent.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
                del messages[stream_id], left[stream_id]
                continue
            elif among == 2:
                part = b"\3" + part + bytes(3)
                flags |= PADDED
            sent.append(data_frame(stream_id, part, flags))
            left[stream_id] = rest
            if not rest:
                del left[stream_id]
        data = b"".join(sent)
        for most in (len(data), 1000, 109 * 3):
            wire = Wire()
            for begin in range(0, len(data), most):
                wire.feed_all(data[begin : begin + most])
            assert wire.goaway() is None
            arrived = {
                event[1]: event[2] for event in wire.events if event[0] == "message"
            }
            assert arrived == messages, seed


def test_a_read_is_never_much_shorter_than_it_may_be() -> None:
    """Frames longer than half a read, or the rest of one, do not make reads tiny."""
    connection = Wire().connection
    for frame_bytes, left in ((200_000, 0), (200_000, 10), (16_393, 300_000), (10, 9)):
        connection.frame_bytes = frame_bytes
        connection._data_left = left
        assert 131_072 <= connection.fitting_bytes(262_144) <= 262_144


def test_more_than_the_window_closes_the_connection() -> None:
    """DATA beyond the window closes the connection, by the short and the long path."""
    limits = ConnectionLimits(preferred_window=1)
    for chunk in (70_000, 1000):
        budget = ReceiveBudget(1 << 20)
        budget.used_bytes = budget.limit_bytes  # others have taken all
        wire = Wire(limits, budget=budget)
        wire.feed(headers_frame(1))
        for _ in range(0, 80_000, chunk):
            wire.feed(data_frame(1, b"\0\0\1\0\0" + b"x" * chunk, flags=0))
        assert wire.goaway() is ErrorCode.FLOW_CONTROL_ERROR


def test_without_budget_no_window_is_granted_until_bytes_are_released() -> None:
    """One connection's unfinished work holds another's window back."""
    budget = ReceiveBudget(150_000)
    first = Wire(budget=budget)
    second = Wire(budget=budget)
    message = prefixed(b"x" * 60_000)
    first.feed(headers_frame(1) + data_frame(1, message))
    second.feed(headers_frame(1) + data_frame(1, message[:60_000], flags=0))
    assert first.sent_types() == second.sent_types() == []
    assert second.connection.is_starved
    first.connection.release(first.recorder.opened[1])
    second.connection.refill()
    assert second.sent_types() == ["WINDOW_UPDATE"]


def test_a_closed_connection_leaves_the_budget_as_it_was() -> None:
    """Whatever it was in the middle of."""
    budget = ReceiveBudget(10 << 20)
    wire = Wire(budget=budget)
    wire.feed(request(1) + headers_frame(3) + data_frame(3, b"\0\0\0\1\0abc", flags=0))
    wire.feed(data_frame(3, b"\x03abc\0\0\0", flags=PADDED))
    wire.connection.close()
    assert budget.used_bytes == 0
    assert wire.events[-2:] == [("reset", 1), ("reset", 3)]
    wire.connection.close()
    wire.connection.refill()
    assert budget.used_bytes == 0


# -- limits and floods -----------------------------------------------------------------


def test_a_round_takes_a_bounded_number_of_requests() -> None:
    """The rest waits, whole, for the next call."""
    wire = Wire(ConnectionLimits(max_requests_per_round=10), echo=True)
    data = b"".join(request(stream_id) for stream_id in range(1, 51, 2))
    assert wire.feed(data)
    assert len([event for event in wire.events if event[0] == "request"]) == 10
    assert wire.feed(b"")
    assert not wire.feed(b"")
    assert len([event for event in wire.events if event[0] == "request"]) == 15


@pytest.mark.parametrize("padding", [0, 1])
def test_bodies_that_come_after_all_heads_are_bounded_too(padding: int) -> None:
    """Some clients open every stream before they send the first message."""
    wire = Wire(ConnectionLimits(max_requests_per_round=10))
    ids = range(1, 41, 2)
    flags = END_STREAM | (PADDED if padding else 0)
    payload = b"\0" * padding + prefixed(b"x")
    wire.feed_all(b"".join(headers_frame(stream_id) for stream_id in ids))
    assert wire.connection.num_begun == 10
    assert len(wire.events) == 20
    assert wire.feed(b"".join(data_frame(n, payload, flags) for n in ids))
    wire.feed(b"")
    ends = [event[0] for event in wire.events if event[0] in ("request", "end")]
    assert len(ends) == 20


def test_large_requests_are_bounded_apart() -> None:
    """One image may be as much work as many small requests."""
    wire = Wire()
    wire.connection.max_large = 1
    body = prefixed(b"x" * 100_000)
    for n in (1, 3, 5):
        wire.feed(headers_frame(n) + data_frame(n, body[:50_000], 0))
    assert wire.feed(b"".join(data_frame(n, body[50_000:]) for n in (1, 3, 5)))
    assert [event[0] for event in wire.events].count("end") == 1
    assert wire.feed(b"")
    assert not wire.feed(b"")
    assert [event[0] for event in wire.events].count("end") == 2


def test_requests_by_the_long_path_are_bounded_too() -> None:
    """Padding or trailers do not buy more work per round."""
    wire = Wire(ConnectionLimits(max_requests_per_round=10))
    data = b"".join(
        headers_frame(stream_id)
        + data_frame(stream_id, b"\0" + prefixed(b"x"), END_STREAM | PADDED)
        for stream_id in range(1, 51, 2)
    )
    assert wire.feed(data)
    assert len([event for event in wire.events if event[0] == "open"]) == 10


@pytest.mark.parametrize("is_one_frame", [True, False])
def test_a_round_takes_a_bounded_number_of_a_streams_messages(
    is_one_frame: bool,
) -> None:
    """One DATA frame holds fifty thousand, each of which asks for an answer."""
    num_messages = 5000
    wire = Wire(ConnectionLimits(max_requests_per_round=10))
    wire.feed(headers_frame(1))
    if is_one_frame:
        data = data_frame(1, prefixed(b"") * num_messages, 0)
    else:
        data = data_frame(1, prefixed(b""), 0) * num_messages
    has_more = wire.feed(data)
    num_taken = 0
    while True:
        num_now = [event[0] for event in wire.events].count("message")
        assert num_now <= 10 + 512 / 5 + 2
        num_taken += num_now
        if not has_more:
            break
        has_more = wire.feed(b"")
    assert num_taken == num_messages


@pytest.mark.parametrize(
    "frame",
    [
        data_frame(1, b"x", 0),
        data_frame(1, b"\0x", PADDED),
        frames.window_update(1, 1000),
        frames.window_update(0, 1000),
        frames.window_update(3, 1000),
        frames.frame(0xBE, 0, 0, b"grease"),
    ],
    ids=["data", "padded", "update", "of all", "of one gone", "extension"],
)
def test_a_round_takes_a_bounded_number_of_any_frames(frame: bytes) -> None:
    """A message byte by byte is no more work per round than whole requests are."""
    num_frames = 1000
    wire = Wire(ConnectionLimits(max_requests_per_round=10))
    wire.feed(
        headers_frame(1) + headers_frame(3) + frames.rst_stream(3, ErrorCode.CANCEL)
    )
    wire.feed(data_frame(1, prefixed(bytes(num_frames + 1))[:10], 0))
    has_more = wire.feed(frame * num_frames)
    num_rounds = 1
    while has_more:
        num_rounds += 1
        has_more = wire.feed(b"")
    assert num_rounds == math.ceil(num_frames / 80)
    assert not wire.connection.is_closed


def test_a_round_decodes_a_bounded_number_of_header_bytes() -> None:
    """Blocks that are not known take time by their length."""
    wire = Wire(ConnectionLimits(max_requests_per_round=10), echo=True)
    blocks = [
        literal_block(grpc_headers(("note", f"{index:05}" + "x" * 2500)))
        for index in range(10)
    ]
    assert wire.feed(b"".join(headers_frame(2 * n + 1, blocks[n]) for n in range(10)))
    assert len(wire.events) == 1
    assert wire.feed(b"")
    assert wire.connection.num_begun == 1
    while wire.feed(b""):
        pass
    # Known ones do not.
    assert not wire.feed(
        b"".join(headers_frame(2 * n + 1, blocks[9]) for n in range(10, 20))
    )
    assert wire.connection.num_begun == 10


def test_long_heads_count_against_the_receive_budget() -> None:
    """A few bytes of HPACK make kilobytes: streams that wait hold no more than that."""
    budget = ReceiveBudget(1 << 20)
    wire = Wire(budget=budget)
    free_bytes = budget.free_to_all_bytes
    note = b"\x40\x04note\x7f\xbd\x1d" + b"x" * 3900  # enters the table
    for index in range(200):
        own = literal_block(grpc_headers(("own", f"{index:05}")))
        wire.feed_all(headers_frame(2 * index + 1, own + note))
        note = b"\xbe" * 3
    opened = len(wire.connection.streams)
    assert 0 < opened <= free_bytes // 4000
    assert wire.answer(399).reset is ErrorCode.REFUSED_STREAM
    for stream in list(wire.connection.streams.values()):
        wire.reply(stream, b"x")
    assert budget.used_bytes == wire.connection._window.size


def test_streams_beyond_the_limit_are_refused() -> None:
    """REFUSED_STREAM tells the client that nothing was done."""
    wire = Wire(ConnectionLimits(max_concurrent_streams=2))
    wire.feed(request(1) + request(3) + request(5))
    assert wire.answer(5).reset is ErrorCode.REFUSED_STREAM
    wire.reply(wire.recorder.opened[1], b"x")
    wire.feed(request(7))
    assert 7 in wire.connection.streams


def test_many_connections_may_have_few_streams_each() -> None:
    """Streams are bounded for the whole server; who is alone has what was announced."""
    budget = ReceiveBudget(256 << 20)
    wire = Wire(budget=budget)
    others = [ReceiveWindow(budget, 1 << 20) for _ in range(999)]
    ids = [2 * n + 1 for n in range(70)]
    wire.feed_all(b"".join(headers_frame(stream_id) for stream_id in ids))
    assert len(wire.connection.streams) == 32
    assert wire.answer(ids[-1]).reset is ErrorCode.REFUSED_STREAM
    for window in others:
        window.close()
    wire.feed_all(b"".join(headers_frame(2 * n + 1) for n in range(100, 1000)))
    assert len(wire.connection.streams) == 32 + 900
    many = [ReceiveWindow(budget, 1 << 20) for _ in range(10_000)]
    assert budget.max_streams_each == 32
    for window in many:
        window.close()


def test_work_that_was_cut_off_counts_until_it_ends() -> None:
    """A client cannot have more work running than streams allowed, by resetting."""
    wire = Wire(ConnectionLimits(max_concurrent_streams=2))
    wire.feed(request(1) + frames.rst_stream(1, ErrorCode.CANCEL))
    wire.connection.num_cut_off += 1
    wire.feed(request(3) + request(5))
    assert wire.answer(5).reset is ErrorCode.REFUSED_STREAM
    assert not wire.connection.is_idle
    wire.connection.num_cut_off -= 1
    wire.feed(request(7))
    assert 7 in wire.connection.streams


def test_new_streams_are_refused_while_answers_pile_up() -> None:
    """A client that takes no answers gets no more work done."""
    wire = Wire(ConnectionLimits(max_queued_bytes=1000))
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + request(1))
    wire.connection.send_reply(wire.recorder.opened[1], b"x" * 2000)
    wire.feed(request(3))
    assert wire.answer(3).reset is ErrorCode.REFUSED_STREAM


def _rapid_reset(index: int) -> bytes:
    stream_id = 2 * index + 1
    return headers_frame(stream_id, BLOCK) + frames.rst_stream(
        stream_id, ErrorCode.CANCEL
    )


FLOODS: dict[str, Callable[[int], bytes]] = {
    "rapid reset": _rapid_reset,
    "ping": lambda _: frames.ping(b"12345678"),
    "settings": lambda _: frames.settings({Setting.MAX_FRAME_SIZE: 20_000}),
    "settings ack": lambda _: frames.SETTINGS_ACK,
    "large header blocks": lambda index: headers_frame(
        2 * index + 1, literal_block(grpc_headers(("a", "x" * 20_000)))
    ),
    "ping ack": lambda _: frames.ping(b"12345678", ack=True),
    "empty data": lambda index: headers_frame(1) * (not index) + data_frame(1, b"", 0),
    "padded empty data": lambda index: (
        headers_frame(1) * (not index) + data_frame(1, b"\x02\0\0", PADDED)
    ),
    "priority": lambda _: frames.frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\0\x10"),
    "tiny window updates": lambda _: frames.window_update(0, 1),
    "extensions": lambda _: frames.frame(0xEE, 0, 0, b""),
    "goaway": lambda _: frames.goaway(0, ErrorCode.NO_ERROR),
    "malformed": lambda index: headers_frame(2 * index + 1, b"\x82"),
    "window updates on closed streams": lambda index: (
        headers_frame(1) * (not index)
        + frames.rst_stream(1, ErrorCode.CANCEL)
        + frames.window_update(1, 1)
    ),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_is_told_to_calm_down(kind: str) -> None:
    """ENHANCE_YOUR_CALM after a bounded number of frames, with bounded output."""
    wire = Wire()
    for index in range(5000):
        wire.feed_all(FLOODS[kind](index))
        if wire.connection.is_closed:
            break
    assert len(wire.connection.out) < 2500
    assert wire.goaway() is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(("timeout", "is_flood"), [("1m", False), ("10S", True)])
def test_requests_given_up_when_their_time_is_up_cost_nothing(
    timeout: str, is_flood: bool
) -> None:
    """Others share the connection of who asks with deadlines that cannot be met."""
    wire = Wire()
    block = literal_block(grpc_headers(("grpc-timeout", timeout)))
    for index in range(3000):
        stream_id = 2 * index + 1
        reset = frames.rst_stream(stream_id, ErrorCode.CANCEL)
        wire.feed_all(headers_frame(stream_id, block) + reset)
        if wire.connection.is_closed:
            break
    assert wire.connection.is_closed is is_flood


@pytest.mark.parametrize("size", [16_000, 17_000, 30_000, 65_000])
@pytest.mark.parametrize("num_pieces", [1, 4])
def test_headers_that_are_too_long_cost_their_own_call_alone(
    size: int, num_pieces: int
) -> None:
    """A proxy sends the calls of many clients on one connection."""
    wire = Wire()
    wire.feed(request(1))
    block = literal_block(grpc_headers(("a", "x" * (size - 200))))
    cut = len(block) // num_pieces + 1
    pieces = [block[index : index + cut] for index in range(0, len(block), cut)]
    flags = [0] * (num_pieces - 1) + [END_HEADERS]
    for index, piece in enumerate(pieces):
        kind = FrameType.CONTINUATION if index else FrameType.HEADERS
        wire.feed(frames.frame(kind, flags[index], 3, piece))
    assert not wire.connection.is_closed
    assert 1 in wire.connection.streams
    if size > ConnectionLimits().max_header_list_bytes:
        head = wire.recorder.opened[3].head
        assert isinstance(head.refusal, ResourceExhausted)
    assert wire.budget.num_large_blocks == 0


def test_headers_beyond_four_times_what_is_taken_close_the_connection() -> None:
    """They have to be decoded, for nothing, before anything else."""
    wire = Wire()
    wire.feed(frames.frame_head(FrameType.HEADERS, END_HEADERS, 1, 66_000))
    assert wire.goaway() is ErrorCode.ENHANCE_YOUR_CALM


def test_few_long_headers_may_be_unfinished_in_the_whole_server() -> None:
    """Ten thousand connections with 60 KB each would be 600 MB."""
    budget = ReceiveBudget(256 << 20)
    wires = [Wire(budget=budget) for _ in range(MAX_LARGE_BLOCKS + 1)]
    head = frames.frame_head(FrameType.HEADERS, END_HEADERS, 1, 60_000)
    for wire in wires:
        wire.feed(head)
    assert [wire.connection.is_closed for wire in wires[-2:]] == [False, True]
    wires[0].connection.close()
    late = Wire(budget=budget)
    late.feed(head)
    assert not late.connection.is_closed
    for wire in (*wires, late):
        wire.connection.close()
    assert budget.num_large_blocks == 0


def test_all_calls_that_a_client_may_have_can_be_given_up_at_once() -> None:
    """Others share its connection: those that cancel 1,000 calls have not attacked it."""
    wire = Wire()
    num = ConnectionLimits().max_concurrent_streams
    stream_ids = range(1, 2 * num, 2)
    wire.feed_all(b"".join(map(request, stream_ids)))
    resets = [frames.rst_stream(each, ErrorCode.CANCEL) for each in stream_ids]
    wire.feed_all(b"".join(resets))
    assert not wire.connection.is_closed


@pytest.mark.parametrize(("after_s", "is_flood"), [(1.0, False), (0.1, True)])
def test_calls_given_up_after_a_second_cost_nothing(
    after_s: float, is_flood: bool
) -> None:
    """A reset after a second of waiting costs nothing, with or without a deadline."""
    wire = Wire()
    for first_id in range(1, 20_000, 400):
        stream_ids = range(first_id, first_id + 400, 2)
        wire.feed_all(b"".join(map(request, stream_ids)))
        wire.now_s += after_s
        resets = [frames.rst_stream(each, ErrorCode.CANCEL) for each in stream_ids]
        wire.feed_all(b"".join(resets))
        if wire.connection.is_closed:
            break
    assert wire.connection.is_closed is is_flood


def test_who_keeps_to_what_was_announced_may_be_refused_often() -> None:
    """With many connections there is room for fewer streams than each was told."""
    budget = ReceiveBudget(256 << 20)
    budget.count_windows(500)
    wire = Wire(budget=budget)
    num = ConnectionLimits().max_concurrent_streams
    wire.feed_all(b"".join(map(request, range(1, 2 * num, 2))))
    assert 0 < len(wire.connection.streams) < num
    assert not wire.connection.is_closed


@pytest.mark.parametrize("size", [0, 1, 600])
def test_a_continuation_flood_is_told_to_calm_down(size: int) -> None:
    """CVE-2024-27316: a header block without end, of empty or full frames."""
    wire = Wire()
    wire.feed(headers_frame(1, b"", flags=0))
    for _ in range(100):
        wire.feed(frames.frame(FrameType.CONTINUATION, 0, 1, b"x" * size))
    assert wire.goaway() is ErrorCode.ENHANCE_YOUR_CALM


def test_pings_that_follow_answers_cost_nothing() -> None:
    """Clients measure their bandwidth with a PING per answer."""
    wire = Wire(echo=True)
    for index in range(3000):
        wire.feed(request(2 * index + 1) + frames.ping(b"12345678"))
    assert not wire.connection.is_closed


def test_an_hpack_bomb_is_told_to_calm_down() -> None:
    """One large entry, referred to thousands of times."""
    wire = Wire()
    wire.feed(headers_frame(1, BLOCK + b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4000))
    wire.feed(headers_frame(3, BLOCK + b"\xbe" * 10_000))
    assert wire.goaway() is ErrorCode.ENHANCE_YOUR_CALM


# -- ping, drain, close -----------------------------------------------------------------


def test_a_ping_is_answered_with_its_payload() -> None:
    """A PING is answered with its payload, and an ACK is not answered."""
    wire = Wire()
    wire.feed(frames.ping(b"abcdefgh") + frames.ping(b"ijklmnop", ack=True))
    (pong,) = wire.sent()
    assert pong.is_ack
    assert pong.payload == b"abcdefgh"


def test_a_drain_takes_what_is_under_way_and_no_more() -> None:
    """GOAWAY, PING; the requests before its answer count; then the line is drawn."""
    wire = Wire()
    wire.connection.begin_drain()
    wire.connection.begin_drain()
    goaway, ping = wire.sent()
    assert goaway.error is ErrorCode.NO_ERROR
    assert int.from_bytes(goaway.payload[:4], "big") == LARGEST_WINDOW
    wire.feed(request(1))
    assert not wire.connection.is_drained
    wire.feed(frames.ping(ping.payload, ack=True))
    (goaway,) = wire.sent()
    assert int.from_bytes(goaway.payload[:4], "big") == 1
    wire.feed(request(3))
    assert 3 not in wire.connection.streams
    assert not wire.connection.is_drained
    wire.reply(wire.recorder.opened[1], b"x")
    assert wire.answer(1).messages == [b"x"]
    assert wire.connection.is_drained
    assert not wire.connection.is_closed


def test_a_drain_ends_without_the_clients_help() -> None:
    """The owner draws the line itself when no answer comes."""
    wire = Wire()
    wire.connection.begin_drain()
    wire.connection.finish_drain()
    wire.connection.finish_drain()
    assert wire.sent_types() == ["GOAWAY", "PING", "GOAWAY"]
    assert wire.connection.is_drained


def test_closing_resets_every_stream_once() -> None:
    """Whoever works for it learns that nobody waits."""
    wire = Wire()
    wire.feed(request(1) + request(3) + headers_frame(5))
    wire.connection.close()
    resets = [event for event in wire.events if event[0] == "reset"]
    assert resets == [("reset", 1), ("reset", 3), ("reset", 5)]


def test_the_events_object_may_close_the_connection_from_within() -> None:
    """Nothing of what follows in the same bytes is processed."""
    wire = Wire()
    wire.recorder.answer = lambda stream, message: wire.connection.close()
    wire.feed(request(1) + request(3))
    assert [event[0] for event in wire.events] == ["open", "request", "reset"]


def test_an_exception_of_the_events_object_passes_through() -> None:
    """It is the owner's to contain."""
    wire = Wire()

    def fail(stream: Stream, message: bytes) -> None:
        raise ZeroDivisionError

    wire.recorder.answer = fail
    with pytest.raises(ZeroDivisionError):
        wire.feed(request(1))


def test_an_unfinished_frame_is_dated_by_its_beginning() -> None:
    """A frame is dated by its first byte, so that a byte a minute is not enough."""
    wire = Wire()
    assert wire.connection.stuck_since_s is None
    ping = frames.ping(b"12345678")
    wire.now_s = 200.0
    wire.feed(ping + ping[:3])
    wire.now_s = 300.0
    wire.feed(ping[3:5])
    assert wire.connection.stuck_since_s == 200.0
    wire.feed(ping[5:])
    assert wire.connection.stuck_since_s is None


def test_an_unfinished_header_block_is_dated_by_its_first_frame() -> None:
    """CONTINUATION frames do not renew it."""
    wire = Wire()
    wire.feed(headers_frame(1, BLOCK[:10], flags=0))
    wire.now_s = 200.0
    wire.feed(frames.frame(FrameType.CONTINUATION, 0, 1, BLOCK[10:20]))
    assert wire.connection.stuck_since_s == 100.0


def test_real_encoders_and_dynamic_tables_work_throughout() -> None:
    """A thousand requests from one encoder whose table lives and turns over."""
    wire = Wire(echo=True)
    encoder = Encoder()
    for index in range(1000):
        stream_id = 2 * index + 1
        block = encoder.encode(
            grpc_headers(("x-id", str(index // 3)), ("grpc-timeout", f"{index % 7}S"))
        )
        wire.feed(
            headers_frame(stream_id, block) + data_frame(stream_id, prefixed(b"m"))
        )
        head = wire.recorder.opened[stream_id].head
        assert dict(head.metadata)["x-id"] == str(index // 3)
        assert head.timeout_s == index % 7
    assert wire.connection.num_answered == 1000


@pytest.mark.parametrize(
    "field", [f.name for f in dataclasses.fields(ConnectionLimits)]
)
def test_senseless_limits_are_refused(field: str) -> None:
    """Options are validated when they are made."""
    with pytest.raises(ValueError, match=field):
        ConnectionLimits(**{field: 0})


def test_what_arrives_after_our_end_is_dropped_while_the_end_is_queued() -> None:
    """We have ended the stream; the trailers wait for the client's window."""
    wire = Wire()
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + headers_frame(1))
    stream = wire.recorder.opened[1]
    wire.connection.send_message(stream, b"last")
    wire.connection.send_end(stream, response.OK_TRAILERS_BLOCK)
    wire.feed(data_frame(1, prefixed(b"late"), flags=0) + data_frame(1, b"x"))
    assert wire.events == [("open", 1, "/tfs.test.Echo/Say")]
    wire.feed(frames.window_update(1, 100))
    assert wire.answer(1).messages == [b"last"]
    assert wire.answer(1).status == "0"
    assert wire.connection.is_idle
    assert wire.budget.used_bytes == wire.connection._window.size
