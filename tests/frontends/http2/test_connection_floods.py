"""What one connection may ask of the server in a round, and what is told to calm down."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest

from tests.frontends.express.wire import (
    Wire,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
    request,
)
from tfs.core.errors import ResourceExhausted
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    ErrorCode,
    FrameType,
)
from tfs.frontends.http2.state import ConnectionLimits


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
    ids = range(1, 49, 2)
    flags = END_STREAM | (PADDED if padding else 0)
    payload = b"\0" * padding + prefixed(b"x")
    wire.feed_all(b"".join(headers_frame(stream_id) for stream_id in ids))
    assert len(wire.events) == 24
    assert wire.feed(b"".join(data_frame(n, payload, flags) for n in ids))
    ends = [event[0] for event in wire.events if event[0] in ("request", "end")]
    assert 10 <= len(ends) <= 11


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
    assert num_rounds == math.ceil(num_frames / 160)
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
    assert len(wire.events) == 1
    while wire.feed(b""):
        pass
    # Known ones do not.
    assert not wire.feed(
        b"".join(headers_frame(2 * n + 1, blocks[9]) for n in range(10, 20))
    )


def test_long_heads_count_against_the_budget() -> None:
    """A few bytes of HPACK make kilobytes: streams that wait hold no more than that."""
    budget = MemoryBudget(1 << 20, lambda fn: None)
    wire = Wire(budget=budget)
    note = b"\x40\x04note\x7f\xbd\x1d" + b"x" * 3900  # enters the table
    for index in range(300):
        own = literal_block(grpc_headers(("own", f"{index:05}")))
        wire.feed_all(headers_frame(2 * index + 1, own + note))
        note = b"\xbe" * 3
    assert 0 < len(wire.connection.streams) <= budget.limit_bytes // 4000
    assert budget.used_bytes <= budget.waiting_limit_bytes
    assert wire.answer(599).status == "8"
    for stream in list(wire.connection.streams.values()):
        wire.reply(stream, b"x")
    assert budget.used_bytes == 0


def test_unfinished_headers_count_against_the_budget() -> None:
    """Ten thousand connections with 60 KB each would be 600 MB."""
    budget = MemoryBudget(1 << 20, lambda fn: None)
    wires = [Wire(budget=budget) for _ in range(40)]
    for wire in wires:
        wire.feed(headers_frame(1, b"x" * 16_000, flags=0))
        wire.feed(frames.frame(FrameType.CONTINUATION, 0, 1, b"x" * 16_000))
        wire.feed(frames.frame_head(FrameType.CONTINUATION, 0, 1, 8000) + b"x" * 7999)
    num_closed = sum(wire.connection.is_closed for wire in wires)
    assert 0 < num_closed < 40
    assert budget.used_bytes <= budget.waiting_limit_bytes
    for wire in wires:
        wire.connection.close()
    assert budget.used_bytes == 0


def test_streams_beyond_the_limit_are_refused() -> None:
    """REFUSED_STREAM tells the client that nothing was done."""
    wire = Wire(ConnectionLimits(max_concurrent_streams=2))
    wire.feed(request(1) + request(3) + request(5))
    assert wire.answer(5).reset is ErrorCode.REFUSED_STREAM
    wire.reply(wire.recorder.opened[1], b"x")
    wire.feed(request(7))
    assert 7 in wire.connection.streams


def test_work_that_was_cut_off_counts_until_it_ends() -> None:
    """A client cannot have more work running than streams allowed, by resetting."""
    wire = Wire(ConnectionLimits(max_concurrent_streams=2))
    wire.feed(request(1) + frames.rst_stream(1, ErrorCode.CANCEL))
    wire.connection.state.num_cut_off += 1
    wire.feed(request(3) + request(5))
    assert wire.answer(5).reset is ErrorCode.REFUSED_STREAM
    wire.connection.state.num_cut_off -= 1
    wire.feed(request(7))
    assert 7 in wire.connection.streams


FLOODS: dict[str, Callable[[int], bytes]] = {
    "settings ack": lambda _: frames.SETTINGS_ACK,
    "large header blocks": lambda index: headers_frame(
        2 * index + 1, literal_block(grpc_headers(("a", "x" * 20_000)))
    ),
    "ping ack": lambda _: frames.ping(b"12345678", ack=True),
    "padded empty data": lambda index: (
        headers_frame(1) * (not index) + data_frame(1, b"\x02\0\0", PADDED)
    ),
    "tiny window updates": lambda _: frames.window_update(0, 1),
    "extensions": lambda _: frames.frame(0xEE, 0, 0, b""),
    "continuations": lambda index: (
        headers_frame(1, b"", flags=0) * (not index)
        + frames.frame(FrameType.CONTINUATION, 0, 1, b"x" * (index % 2))
    ),
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
    """ENHANCE_YOUR_CALM after a bounded number of frames, with bounded output.

    More kinds, and what becomes of others meanwhile: ../express/test_hostile.py.
    """
    wire = Wire()
    for index in range(5000):
        wire.feed_all(FLOODS[kind](index))
        if wire.connection.is_closed:
            break
    assert len(wire.connection.sender.out) < 2500
    assert wire.goaway() is ErrorCode.ENHANCE_YOUR_CALM


def _num_taken(wire: Wire) -> int:
    """Returns how many PINGs are taken before the connection is closed."""
    for number in range(10_000):
        wire.feed(frames.ping(b"12345678"))
        if wire.connection.is_closed:
            return number
    return 10_000


@pytest.mark.parametrize(("after_s", "num_answers"), [(10.0, 0), (0.0, 250)])
def test_nuisances_are_forgotten_with_time_and_with_answers(
    after_s: float, num_answers: int
) -> None:
    """A hundred in a second, and four for each message that the client is sent."""
    wire = Wire(echo=True)
    wire.feed_all(frames.window_update(0, 1) * 2000)
    wire.now_s += after_s
    for index in range(num_answers):
        wire.feed(request(2 * index + 1))
    assert abs(_num_taken(wire) - 1048 // 5) <= 1


def test_nothing_is_saved_up() -> None:
    """A connection that was quiet for a day may send no more at once than a new one."""
    new, old = Wire(), Wire()
    old.now_s += 86_400
    assert _num_taken(new) == _num_taken(old)


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


def test_headers_beyond_four_times_what_is_taken_close_the_connection() -> None:
    """They have to be decoded, for nothing, before anything else."""
    wire = Wire()
    wire.feed(frames.frame_head(FrameType.HEADERS, END_HEADERS, 1, 66_000))
    assert wire.goaway() is ErrorCode.ENHANCE_YOUR_CALM


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


def test_pings_that_follow_answers_cost_nothing() -> None:
    """Clients measure their bandwidth with a PING per answer."""
    wire = Wire(echo=True)
    for index in range(3000):
        wire.feed(request(2 * index + 1) + frames.ping(b"12345678"))
    assert not wire.connection.is_closed


@pytest.mark.parametrize(
    "field", [f.name for f in dataclasses.fields(ConnectionLimits)]
)
def test_senseless_limits_are_refused(field: str) -> None:
    """Options are validated when they are made."""
    with pytest.raises(ValueError, match=field):
        ConnectionLimits(**{field: 0})
