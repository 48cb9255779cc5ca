"""Bytes received where they belong mean what the same bytes mean when they are parsed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontends.express.wire import (
    Wire,
    data_frame,
    headers_frame,
    prefixed,
)
from tfs.core.errors import DeadlineExceeded
from tfs.frontends.rpc.express import frames
from tfs.frontends.rpc.express.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.frames import END_STREAM, ErrorCode, Setting
from tfs.frontends.rpc.express.landing import FrameOrder, LandingScratch

LIMITS = ConnectionLimits(preferred_window=4 << 20)


def uploads(
    bodies: Sequence[bytes], frame_bytes: int, rng: random.Random, odd: float = 0.0
) -> bytes:
    """Returns requests whose DATA frames take turns; ``odd``: how many are not alike.

    The streams are 1, 3, 5, ... What is odd is never wrong: other frames in between,
    frames of other lengths, padding, a turn left out.
    """
    parts = [headers_frame(2 * index + 1) for index in range(len(bodies))]
    left = {2 * index + 1: prefixed(body) for index, body in enumerate(bodies)}
    while left:
        for stream_id, data in list(left.items()):
            size, flags = frame_bytes, 0
            if rng.random() < odd:
                kind = rng.randrange(5)
                if kind == 0:
                    continue
                if kind == 1:
                    parts.append(frames.window_update(0, 1000))
                elif kind == 2:
                    parts.append(frames.ping(b"12345678"))
                elif kind == 3:
                    size = rng.randrange(1, 2 * frame_bytes)
                else:
                    flags = frames.PADDED
            payload, rest = data[:size], data[size:]
            if flags:
                payload = b"\x03" + payload + bytes(3)
            if rest:
                left[stream_id] = rest
            else:
                del left[stream_id]
                flags |= END_STREAM
            parts.append(data_frame(stream_id, payload, flags))
    return b"".join(parts)


def deliver(wire: Wire, data: bytes, sizes: Sequence[int]) -> int:
    """Feeds reads of these sizes, in place where there is one; returns how much was."""
    index = turn = num_in_place = 0
    while index < len(data):
        piece = data[index : index + sizes[turn % len(sizes)]]
        size, has_more = wire.land(piece)
        num_in_place += size
        if not size:
            size = len(piece)
            has_more = wire.feed(piece)
        while has_more:
            has_more = wire.feed(b"")
        index += size
        turn += 1
        wire.connection.refill()
    return num_in_place


def eager() -> LandingScratch:
    return LandingScratch(least_bytes=1, least_frame_bytes=1)


@given(
    seed=st.integers(0, 1 << 30),
    num_bodies=st.integers(1, 5),
    frame_bytes=st.sampled_from([1, 7, 100, 4096]),
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=8),
    odd=st.sampled_from([0.0, 0.02, 0.3]),
)
@settings(max_examples=60, deadline=None)
def test_in_place_or_parsed_is_all_the_same(
    seed: int, num_bodies: int, frame_bytes: int, sizes: list[int], odd: float
) -> None:
    """The events, the books and what is left over, whatever way the reads are cut."""
    rng = random.Random(seed)
    bodies = [
        rng.randbytes(rng.randrange(min(200 * frame_bytes, 150_000)))
        for _ in range(num_bodies)
    ]
    data = uploads(bodies, frame_bytes, rng, odd)
    in_place, parsed = Wire(LIMITS, scratch=eager()), Wire(LIMITS)
    deliver(in_place, data, sizes)
    parsed.feed_all(data)
    messages = [event for event in in_place.events if event[0] == "message"]
    expected = [event for event in parsed.events if event[0] == "message"]
    assert messages == expected
    for stream_id, stream in in_place.recorder.opened.items():
        twin = parsed.recorder.opened[stream_id]
        assert stream.received_bytes == twin.received_bytes
        assert stream.held_bytes == twin.held_bytes
        assert stream.state is twin.state
    assert in_place.budget.used_bytes - in_place.connection._window.size == sum(
        stream.held_bytes for stream in in_place.recorder.opened.values()
    )


def test_what_can_be_foreseen_is_received_in_place() -> None:
    """Four images in frames of 16 KB: all but their ends, and the first read."""
    rng = random.Random(0)
    bodies = [rng.randbytes(600_000) for _ in range(4)]
    wire = Wire(LIMITS, scratch=LandingScratch())
    data = uploads(bodies, 16_384, rng)
    # Messages have to grow at first, and are copied as they do.
    assert deliver(wire, data, [262_144]) > 0.6 * len(data)
    found = [event[2] for event in wire.events if event[0] == "message"]
    assert found == bodies


def test_a_frame_of_any_length_goes_on_in_place() -> None:
    """Clients that send frames as long as they may: the rest of one that is known."""
    body = random.Random(1).randbytes(300_000)
    wire = Wire(LIMITS, scratch=LandingScratch())
    data = uploads([body], 262_144, random.Random(0))
    assert deliver(wire, data, [60_000]) > 100_000
    assert [event[2] for event in wire.events if event[0] == "message"] == [body]


def test_no_message_gets_memory_for_a_guess() -> None:
    """60 MB are announced; what may come in place fits into four times what came."""
    wire = Wire(LIMITS, scratch=eager())
    wire.feed(headers_frame(1))
    frame = data_frame(1, bytes(16_384), 0)
    wire.feed(data_frame(1, b"\0\x03\x93\x87\x00", 0))
    arrived = 0
    for _ in range(40):
        size, _ = wire.land(frame)
        if size < len(frame):
            wire.feed(frame[size:])
        arrived += 16_384
        assembler = wire.recorder.opened[1].assembler
        assert assembler is not None
        assert assembler.room_bytes <= max(65_536, 4 * arrived)


def test_a_stream_that_is_answered_early_gets_no_more() -> None:
    """Its message's memory is free at once; what still comes for it is skipped."""
    wire = Wire(LIMITS, scratch=eager())
    data = uploads([bytes(60_000), b"x" * 60_000], 1000, random.Random(0))
    deliver(wire, data[:30_000], [5000])
    first = wire.recorder.opened[1]
    assert wire.connection._landing is not None
    wire.connection.send_error(first, DeadlineExceeded("too late"))
    wire.connection.release(first)
    assert wire.connection._landing is None
    assert first.held_bytes == 0
    deliver(wire, data[30_000:], [5000])
    found = [event[1:3] for event in wire.events if event[0] == "message"]
    assert found == [(3, b"x" * 60_000)]
    assert wire.budget.used_bytes == (
        wire.connection._window.size + wire.recorder.opened[3].held_bytes
    )


def test_a_connection_that_ends_keeps_no_books() -> None:
    """What was promised to it is free again, in the middle of a frame as well."""
    wire = Wire(LIMITS, scratch=eager())
    data = uploads([bytes(60_000)], 1000, random.Random(0))
    deliver(wire, data[:20_700], [3000])
    wire.connection.close()
    assert wire.budget.used_bytes == 0
    assert wire.connection.landing(1000) == []


def test_a_client_that_overruns_its_window_is_closed() -> None:
    """There is no place for more than the window; what comes then is parsed."""
    limits = ConnectionLimits(preferred_window=65_535)
    wire = Wire(limits, scratch=eager())
    data = uploads([bytes(200_000)], 10_000, random.Random(0))
    index = 0
    while not wire.connection.is_closed and index < len(data):
        wire.connection._window.low_water = 0  # nothing is granted any more
        piece = data[index : index + 7000]
        size, _ = wire.land(piece)
        if not size:
            size = len(piece)
            wire.feed(piece)
        index += size
    assert wire.connection.fault is not None
    assert wire.connection.fault.code is ErrorCode.FLOW_CONTROL_ERROR


def test_after_a_wrong_guess_reads_are_parsed_for_a_while() -> None:
    """A client that does not go round costs no more than a guess now and then."""
    wire = Wire(LIMITS, scratch=eager())
    wire.feed(headers_frame(1) + headers_frame(3))
    for stream_id in (1, 3):
        wire.feed(data_frame(stream_id, prefixed(bytes(60_000))[:1000], 0))
    wire.feed(data_frame(1, bytes(1000), 0) + data_frame(3, bytes(1000), 0))
    wrong = data_frame(3, bytes(1000), 0)
    assert wire.land(wrong)[0] == len(wrong)
    assert wire.recorder.opened[3].received_bytes == 3000
    for _ in range(8):
        assert wire.connection.landing(10_000) == []
    assert wire.connection.landing(10_000) != []


def test_the_order_goes_round() -> None:
    """What followed a frame follows it again; one that has begun is the newest."""
    order = FrameOrder()
    assert order.cycle(0) == []
    order.ids = (1, 3, 5, 1, 3)
    assert order.cycle(0) == [5, 1, 3]
    assert order.cycle(5) == [1, 3, 5]
    order.ids = (1, 3)
    assert order.cycle(0) == [1, 3]
    order.ids = (1, 1)
    assert order.cycle(0) == [1]
    order.ids = (1, 3, 1, 5)
    assert order.cycle(0) == [1, 3, 5]


def test_settings_between_frames_are_heard() -> None:
    """What is not DATA is never mistaken for it."""
    wire = Wire(LIMITS, scratch=eager())
    data = uploads([bytes(60_000)], 1000, random.Random(0))
    middle = len(headers_frame(1)) + 20 * 1009
    setting = frames.settings({Setting.INITIAL_WINDOW_SIZE: 77})
    deliver(wire, data[:middle] + setting + data[middle:], [4000])
    assert wire.recorder.opened[1].send_window == 77
    assert [event[0] for event in wire.events] == ["open", "message", "end"]
