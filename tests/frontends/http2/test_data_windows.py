"""Windows of streams: a first part of each message, and the rest once it is admitted."""

from __future__ import annotations

from typing import Final

import pytest

from tests.frontends.express.wire import Wire, data_frame, headers_frame, prefixed
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http2.frames import (
    DEFAULT_WINDOW,
    PADDED,
    ErrorCode,
    FrameType,
    unpack_uint32,
)

MIB: Final = 1 << 20


def _granted(wire: Wire, stream_id: int) -> int:
    """Returns by how much the windows of a stream were raised since the last look."""
    return sum(
        int(unpack_uint32(sent.payload)[0])
        for sent in wire.sent()
        if sent.frame_type == FrameType.WINDOW_UPDATE and sent.stream_id == stream_id
    )


def _begin(wire: Wire, stream_id: int, size: int, num_bytes: int) -> bytes:
    """Sends the beginning of a message; returns the rest."""
    data = prefixed(bytes(size))
    wire.feed_all(headers_frame(stream_id))
    for index in range(0, num_bytes, 16_384):
        part = data[index : min(index + 16_384, num_bytes)]
        wire.feed_all(data_frame(stream_id, part, 0))
    return data[num_bytes:]


def test_a_short_message_needs_no_window() -> None:
    """It fits into the first one, and nothing is sent before its answer."""
    wire = Wire(echo=True)
    rest = _begin(wire, 1, 50_000, 20_000)
    wire.feed_all(data_frame(1, rest))
    assert _granted(wire, 1) == 0
    assert wire.answer(1).messages == [bytes(50_000)]


def test_a_long_message_gets_its_whole_rest_at_once() -> None:
    """When its length is known; from then on it counts twice, for its answer as well."""
    wire = Wire()
    rest = _begin(wire, 1, 10 * MIB, 16_384)
    assert _granted(wire, 1) == 10 * MIB + 5 - DEFAULT_WINDOW
    assert 19 * MIB < wire.budget.used_bytes <= 20 * MIB
    wire.feed_all(
        b"".join(
            data_frame(1, rest[index : index + 16_384], 0)
            for index in range(0, len(rest), 16_384)
        )
        + data_frame(1, b"")
    )
    assert [event[0] for event in wire.events][-2:] == ["message", "end"]
    assert 19 * MIB < wire.budget.used_bytes <= 20 * MIB
    stream = wire.recorder.opened[1]
    wire.reply(stream, b"")
    assert wire.budget.used_bytes == 0


def test_a_long_message_without_room_waits_and_holds_up_nothing_else() -> None:
    """Requests beside it on its connection are answered; then it goes on."""
    wire = Wire(echo=True)
    budget = wire.budget
    budget.used_bytes = budget.waiting_limit_bytes - 5 * MIB
    _begin(wire, 1, 10 * MIB, 50_000)
    assert _granted(wire, 1) == 0
    wire.feed_all(headers_frame(3) + data_frame(3, prefixed(b"beside")))
    assert wire.answer(3).messages == [b"beside"]
    budget.release(32 * MIB)
    wire.run_posted()
    assert ("output",) in wire.events
    assert _granted(wire, 1) == 10 * MIB + 5 - DEFAULT_WINDOW


def test_what_arrives_without_room_is_refused() -> None:
    """RESOURCE_EXHAUSTED, and what still arrives is dropped."""
    wire = Wire()
    wire.budget.used_bytes = wire.budget.waiting_limit_bytes - 2000
    _begin(wire, 1, 10_000, 5000)
    answer = wire.answer(1)
    assert (answer.status, answer.reset) == ("8", ErrorCode.NO_ERROR)
    wire.feed_all(data_frame(1, bytes(10_000)))
    assert wire.budget.used_bytes == wire.budget.waiting_limit_bytes - 2000


@pytest.mark.parametrize("size", [100_000, 100])
def test_more_than_the_window_of_a_stream_is_a_fault(size: int) -> None:
    """The client was told how much it may send; only that stream ends."""
    wire = Wire(budget=MemoryBudget(256 * MIB, lambda fn: None))
    wire.budget.used_bytes = wire.budget.waiting_limit_bytes - MIB
    _begin(wire, 1, 10 * MIB, 65_535)
    wire.feed_all(data_frame(1, bytes(size), 0))
    assert wire.answer(1).reset is ErrorCode.FLOW_CONTROL_ERROR
    assert not wire.connection.is_closed


def test_a_stream_whose_messages_are_taken_gets_its_window_again() -> None:
    """A thousand of a kilobyte pass through a window of 64."""
    wire = Wire()
    wire.feed_all(headers_frame(1))
    stream = wire.recorder.opened[1]
    left = DEFAULT_WINDOW
    for _ in range(1000):
        message = prefixed(bytes(1000))
        assert left >= len(message)
        wire.feed_all(data_frame(1, message, 0))
        left -= len(message)
        wire.connection.state.release(stream, len(message))
        wire.connection.data.let_send(stream)
        left += _granted(wire, 1)
    assert wire.budget.used_bytes < 2048


def test_padding_costs_no_window() -> None:
    """Whoever pads a long request does not end without a window."""
    wire = Wire()
    wire.feed_all(headers_frame(1))
    wire.feed_all(data_frame(1, b"\x09" + prefixed(b"x" * 100)[:50] + bytes(9), PADDED))
    assert _granted(wire, 1) == 10


def test_the_window_of_the_connection_is_raised_again() -> None:
    """After a gigabyte, far from its end."""
    wire = Wire()
    wire.connection.data.received_bytes = 1 << 30
    wire.feed_all(headers_frame(1) + data_frame(1, prefixed(b"x")))
    assert _granted(wire, 0) == (1 << 30) + 6
