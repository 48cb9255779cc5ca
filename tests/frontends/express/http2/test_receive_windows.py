"""The windows that clients are granted, out of one budget, while requests arrive."""

from __future__ import annotations

import random

from tests.frontends.express.wire import (
    Wire,
    data_frame,
    headers_frame,
    prefixed,
    request,
)
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.http2.flow_control import ReceiveBudget
from tfs.frontends.rpc.frames import (
    DEFAULT_WINDOW,
    END_STREAM,
    PADDED,
    ErrorCode,
    FrameType,
)


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
    budget = ReceiveBudget(450_000)
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
