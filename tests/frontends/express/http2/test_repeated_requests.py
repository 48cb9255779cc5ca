"""Requests like the one before, taken in one go: what a client is told stays the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hpack import Encoder

from tests.frontends.express.wire import (
    Events,
    Wire,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
    request,
)
from tfs.core.errors import Unavailable
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.frames import (
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    LARGEST_WINDOW,
    PADDED,
    ErrorCode,
    FrameType,
    Setting,
)
from tfs.frontends.rpc.heads.request_head import RequestHead

BEFORE = range(1, 12, 2)
"""Streams of requests that are alike, after which the next is known."""

NEXT = BEFORE[-1] + 2
RESERVED = 1 << 31


def grpc_request(
    stream_id: int,
    message: bytes = b"ping",
    increment: int = 5,
    *,
    length: int = 0,
    update: int = 13,
) -> bytes:
    """Returns a unary request as gRPC's own library sends it.

    Args:
        stream_id: Its own.
        message: In one DATA frame.
        increment: Of the window that the client opens between head and message.
        length: What the head says of the body; 0: nothing.
        update: By how much the client opens the connection's window behind that.
    """
    headers = grpc_headers(*([("content-length", str(length))] if length else []))
    return b"".join(
        (
            headers_frame(stream_id, literal_block(headers)),
            frames.window_update(stream_id, increment),
            data_frame(stream_id, prefixed(message)),
            frames.window_update(0, update),
        )
    )


def requests_of(events: Events) -> list[tuple[object, ...]]:
    """Returns those that came whole, in one event."""
    return [event for event in events if event[0] == "request"]


def warm(make: Callable[[int], bytes] = grpc_request) -> Wire:
    """Returns a connection on which requests came that are alike."""
    wire = Wire(echo=True)
    for stream_id in BEFORE:
        wire.feed(make(stream_id))
    assert wire.connection._opening is not None
    assert wire.answer(BEFORE[-1]).messages == [b"ping"]
    return wire


def state(wire: Wire) -> tuple[object, ...]:
    """Returns what a client could tell, and what it has left to send and receive."""
    connection = wire.connection
    sent = wire.sent()
    answers = {
        key: (answer.reset, answer.status, answer.messages)
        for key, answer in wire.answers.items()
    }
    return (
        answers,
        [(each.frame_type, each.stream_id, each.payload) for each in sent],
        connection.is_closed,
        connection.streams.keys(),
        connection._send_window,
        connection._window.size,
        connection._num_tiny_updates,
        wire.budget.used_bytes,
    )


@pytest.mark.parametrize("make", [grpc_request, request])
@pytest.mark.parametrize("size", [1, 7, 22, 107, 1 << 20])
def test_requests_are_the_same_however_they_arrive(
    size: int, make: Callable[[int, bytes], bytes]
) -> None:
    """What comes as one piece takes the short path, to the same end."""
    wire = Wire(echo=True)
    ids = range(1, 30, 2)
    data = b"".join(make(stream_id, b"x" * stream_id) for stream_id in ids)
    for index in range(0, len(data), size):
        wire.feed(data[index : index + size])
    if size >= 1 << 20:
        assert requests_of(wire.events) == [("request", n, b"x" * n) for n in ids]
    for stream_id in ids:
        assert wire.answer(stream_id).messages == [b"x" * stream_id]
    assert wire.connection.is_idle
    held = wire.budget.used_bytes
    wire.connection.close()
    assert held > 0
    assert wire.budget.used_bytes == 0


HEAD = headers_frame(NEXT)
UPDATE = frames.window_update(NEXT, 5)
DATA = data_frame(NEXT, prefixed(b"ping"))


@pytest.mark.parametrize(
    "data",
    [
        grpc_request(NEXT),
        grpc_request(NEXT, b""),
        grpc_request(NEXT, b"x" * 20_000),  # longer than frames may be
        grpc_request(NEXT, update=0),
        grpc_request(NEXT, update=1),
        grpc_request(NEXT, update=LARGEST_WINDOW),
        grpc_request(NEXT, increment=0),
        grpc_request(NEXT, increment=LARGEST_WINDOW),
        grpc_request(NEXT, increment=LARGEST_WINDOW - DEFAULT_WINDOW),
        grpc_request(NEXT, length=9),
        grpc_request(NEXT, length=7),
        grpc_request(NEXT + 2),
        grpc_request(NEXT + 1),
        grpc_request(NEXT - 2),
        grpc_request(NEXT | RESERVED),
        request(NEXT),
        HEAD + UPDATE + data_frame(NEXT, prefixed(b"ping"), 0),
        HEAD + UPDATE + data_frame(NEXT, prefixed(b"ping", compressed=True)),
        HEAD + UPDATE + data_frame(NEXT, prefixed(b"ping")[:-1]),
        HEAD + UPDATE + data_frame(NEXT, prefixed(b"ping") + b"g"),
        HEAD + UPDATE + data_frame(NEXT, b"\1" + prefixed(b"p") + b"0", PADDED),
        HEAD + UPDATE + data_frame(NEXT, prefixed(b"ping") * 2),
        HEAD + UPDATE + data_frame(NEXT - 2, prefixed(b"ping")),
        HEAD + frames.window_update(NEXT - 2, 5) + DATA,
        HEAD + frames.window_update(0, 5) + DATA,
        HEAD + UPDATE + UPDATE + DATA,
        HEAD + UPDATE + headers_frame(NEXT, b"", END_HEADERS | END_STREAM),
        headers_frame(NEXT, flags=END_HEADERS | END_STREAM) + UPDATE + DATA,
        headers_frame(NEXT, flags=0) + UPDATE + DATA,
        HEAD + UPDATE + frames.rst_stream(NEXT, ErrorCode.CANCEL) + DATA,
        HEAD + UPDATE + frames.frame(FrameType.CONTINUATION, 0, NEXT) + DATA,
        frames.settings({Setting.INITIAL_WINDOW_SIZE: LARGEST_WINDOW})
        + grpc_request(NEXT),
        frames.settings({Setting.INITIAL_WINDOW_SIZE: 3}) + grpc_request(NEXT),
    ],
)
def test_what_differs_from_the_requests_before_means_what_its_parts_do(
    data: bytes,
) -> None:
    """The short path takes what is right, and leaves the rest to the table."""
    data += grpc_request(NEXT + 4) + grpc_request(NEXT + 6)
    states = []
    for size in (1, 1 << 20):
        wire = warm()
        for index in range(0, len(data), size):
            wire.feed_all(data[index : index + size])
        states.append(state(wire))
    assert states[0] == states[1]


def test_requests_count_among_those_of_a_round() -> None:
    """Messages are taken only while the round has room for them."""
    wire = Wire(ConnectionLimits(max_requests_per_round=3), echo=True)
    data = b"".join(grpc_request(stream_id) for stream_id in range(1, 40, 2))
    has_more, num_requests = wire.feed(data), []
    while has_more:
        num_requests.append(len(requests_of(wire.events)))
        has_more = wire.feed(b"")
    assert num_requests == [3] * 6
    assert len(requests_of(wire.events)) == 2


def test_a_change_of_the_table_is_another_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal blocks mean equal heads only while HPACK's table is as it was (rule a)."""
    encoder = Encoder()
    insert = [encoder.encode([("x", value)]) for value in ("1", "2")]
    block = literal_block(grpc_headers())
    heads: list[RequestHead] = []
    wire = Wire(echo=True)

    def keep(stream: Stream) -> None:
        heads.append(stream.head)

    monkeypatch.setattr(wire.recorder, "on_open", keep)

    def send(stream_id: int, block: bytes) -> None:
        wire.feed(
            headers_frame(stream_id, block) + data_frame(stream_id, prefixed(b"ping"))
        )

    send(1, block + insert[0])
    for stream_id in range(3, 15, 2):
        send(stream_id, block + b"\xbe")  # the newest in the table
    assert wire.connection._opening is not None
    send(15, block + insert[1])
    for stream_id in range(17, 29, 2):
        send(stream_id, block + b"\xbe")
    assert [head.metadata for head in heads] == [(("x", "1"),)] * 7 + [
        (("x", "2"),)
    ] * 7


def test_streams_that_are_too_many_are_refused() -> None:
    """Calls whose work goes on count as well as those that are open."""
    wire = Wire(ConnectionLimits(max_concurrent_streams=6), echo=True)
    for stream_id in BEFORE:
        wire.feed(grpc_request(stream_id))
    wire.recorder.answer = None
    wire.connection.num_cut_off = 2
    data = b"".join(grpc_request(stream_id) for stream_id in range(NEXT, NEXT + 12, 2))
    wire.feed(data)
    assert len(wire.connection.streams) == 4
    resets = [wire.answer(stream_id).reset for stream_id in range(NEXT, NEXT + 12, 2)]
    assert resets == [None] * 4 + [ErrorCode.REFUSED_STREAM] * 2


def test_nothing_is_taken_behind_the_line_of_a_drain() -> None:
    """GOAWAY told the client that they are not processed."""
    wire = warm()
    wire.connection.begin_drain()
    wire.connection.finish_drain()
    assert wire.events
    wire.feed(grpc_request(NEXT))
    assert wire.events == []
    assert not wire.connection.streams


def test_a_request_answered_when_it_opens_takes_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its other frames are those of a stream that is over."""
    wire = warm()

    def refuse(stream: Stream) -> None:
        wire.connection.send_error(stream, Unavailable("not now"))

    monkeypatch.setattr(wire.recorder, "on_open", refuse)
    wire.feed(grpc_request(NEXT) + grpc_request(NEXT + 2))
    assert requests_of(wire.events)[-1][1] == BEFORE[-1]
    for stream_id in (NEXT, NEXT + 2):
        assert wire.answer(stream_id).status == "14"
    assert wire.goaway() is None


def test_nothing_is_taken_once_the_connection_is_closed() -> None:
    """An answer may be what closes it."""
    wire = warm()
    assert wire.events

    def close(stream: Stream, message: bytes) -> None:
        wire.connection.close()

    wire.recorder.answer = close
    wire.feed(grpc_request(NEXT) + grpc_request(NEXT + 2))
    assert requests_of(wire.events) == [("request", NEXT, b"ping")]


def test_several_heads_are_each_known() -> None:
    """A client calls several methods in turn, and its library writes deadlines variously."""
    wire = Wire(echo=True)
    blocks = [
        literal_block(grpc_headers(("grpc-timeout", timeout)))
        for timeout in ("10S", "10100m", "9900m")
    ]
    for stream_id in range(1, 40, 2):
        block = blocks[stream_id % 3]
        wire.feed(
            headers_frame(stream_id, block) + data_frame(stream_id, prefixed(b"ping"))
        )
    assert wire.connection._openings.keys() == set(blocks)
    for stream_id in range(1, 40, 2):
        assert wire.answer(stream_id).messages == [b"ping"]


def test_what_long_heads_begin_with_is_not_kept() -> None:
    """It would take their memory a second time."""
    wire = Wire(echo=True)
    block = literal_block(grpc_headers(("x", "y" * 300)))
    for stream_id in range(1, 20, 2):
        wire.feed(
            headers_frame(stream_id, block) + data_frame(stream_id, prefixed(b"ping"))
        )
        assert wire.answer(stream_id).messages == [b"ping"]
    assert not wire.connection._openings


def test_heads_before_all_messages_are_taken_one_by_one() -> None:
    """Some clients send so; nothing of theirs is kept, and nothing looked for."""
    wire = Wire(echo=True)
    ids = range(1, 40, 2)
    heads = b"".join(headers_frame(stream_id) for stream_id in ids)
    messages = b"".join(data_frame(stream_id, prefixed(b"ping")) for stream_id in ids)
    wire.feed(heads + messages)
    for stream_id in ids:
        assert wire.answer(stream_id).messages == [b"ping"]
    assert not wire.connection._openings
