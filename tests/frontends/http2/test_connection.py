"""The protocol without sockets: what a client sends, and what it gets for it."""

from __future__ import annotations

import pytest

from tests.frontends.express.wire import (
    BLOCK,
    HELLO,
    Wire,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
    request,
)
from tfs.frontends.http2 import frames, response
from tfs.frontends.http2.frames import (
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
from tfs.frontends.http2.state import ConnectionLimits
from tfs.frontends.http2.stream import Stream

# -- opening ---------------------------------------------------------------------------


def test_a_connection_opens_with_settings() -> None:
    """The server's SETTINGS are the first it says, once it knows to whom."""
    wire = Wire(hello=False)
    assert wire.sent() == []
    wire.feed(PREFACE)
    settings, update = wire.sent()
    values = dict(frames.parse_settings(settings.payload))
    assert values[Setting.MAX_CONCURRENT_STREAMS] == 1024
    assert values[Setting.INITIAL_WINDOW_SIZE] == DEFAULT_WINDOW
    granted = frames.unpack_uint32(update.payload)[0]
    assert DEFAULT_WINDOW + granted == LARGEST_WINDOW
    wire.feed(HELLO.removeprefix(PREFACE))
    assert [sent.is_ack for sent in wire.sent()] == [True]
    assert wire.connection.is_established


def test_the_preface_may_arrive_byte_by_byte() -> None:
    """Nothing is decided before it is whole."""
    wire = Wire(hello=False)
    for byte in HELLO:
        wire.feed(bytes((byte,)))
    assert wire.sent_types() == ["SETTINGS", "WINDOW_UPDATE", "SETTINGS"]
    assert not wire.connection.is_closed


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"POST", b"HEAD /x"])
def test_an_http_1_client_gets_an_http_1_answer(data: bytes) -> None:
    """Somebody pointed a browser at the port: not a byte of HTTP/2 comes before it."""
    wire = Wire(hello=False)
    for byte in data:
        wire.feed(bytes((byte,)))
    assert bytes(wire.connection.sender.out[0]).startswith(b"HTTP/1.1 505")
    assert len(wire.connection.sender.out) == 1
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
    assert not wire.connection.streams


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
    assert wire.budget.used_bytes == 0


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


def test_what_arrives_after_our_end_is_dropped_while_the_end_is_queued() -> None:
    """We have ended the stream; the trailers wait for the client's window."""
    wire = Wire()
    wire.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + headers_frame(1))
    stream = wire.recorder.opened[1]
    wire.connection.sender.send_message(stream, b"last")
    wire.connection.sender.send_end(stream, response.OK_TRAILERS_BLOCK)
    wire.feed(data_frame(1, prefixed(b"late"), flags=0) + data_frame(1, b"x"))
    assert wire.events == [("open", 1, "/tfs.test.Echo/Say")]
    wire.feed(frames.window_update(1, 100))
    assert wire.answer(1).messages == [b"last"]
    assert wire.answer(1).status == "0"
    assert not wire.connection.streams
    wire.connection.state.budget.release_all(stream)
    assert wire.budget.used_bytes == 0
