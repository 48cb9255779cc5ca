"""Any bytes at all: the connection answers or closes, and keeps its books.

What once failed here leaves its bytes in tests/data/http2; they are replayed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontends.express.wire import (
    HELLO,
    Wire,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
)
from tfs.core.errors import InvalidArgument
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http2 import frames, response
from tfs.frontends.http2.frames import (
    END_HEADERS,
    END_STREAM,
    ErrorCode,
    FrameType,
    Setting,
)
from tfs.frontends.http2.state import ConnectionLimits
from tfs.frontends.http2.stream import Stream

DATA = Path(__file__).parents[2] / "data" / "http2"

SMALL = ConnectionLimits(
    max_concurrent_streams=32,
    max_requests_per_round=4,
    max_message_bytes=5000,
    max_header_list_bytes=2000,
)


class Owner:
    """Answers, fails, resets or holds calls at random, as handlers would."""

    def __init__(self, wire: Wire, rng: random.Random) -> None:
        self.wire = wire
        self.rng = rng
        wire.recorder.answer = self.answer
        self.held: list[Stream] = []

    def answer(self, stream: Stream, message: bytes) -> None:
        connection = self.wire.connection
        choice = self.rng.randrange(8)
        if choice == 0:
            self.held.append(stream)
            return
        if choice == 1:
            connection.sender.reset(stream, ErrorCode.CANCEL)
        elif choice == 2:
            connection.sender.send_error(stream, InvalidArgument("no", retry_after_s=1))
        elif choice == 3:
            for _ in range(self.rng.randrange(3)):
                connection.sender.send_message(stream, message * self.rng.randrange(3))
            connection.sender.send_end(stream, response.OK_TRAILERS_BLOCK)
        elif choice == 4:
            connection.sender.send_reply(stream, b"x" * self.rng.randrange(100_000))
        else:
            connection.sender.send_reply(stream, message)
        connection.state.budget.release_all(stream)

    def finish_some(self) -> None:
        while self.held and self.rng.random() < 0.5:
            stream = self.held.pop(self.rng.randrange(len(self.held)))
            if stream.id in self.wire.connection.streams:
                self.wire.connection.sender.send_reply(stream, b"late")
            self.wire.connection.state.budget.release_all(stream)


def play(data: bytes, seed: int = 0) -> Wire:
    """Feeds ``data`` in random pieces to a connection; checks it all the while."""
    rng = random.Random(seed)
    posted: list[Callable[[], None]] = []
    budget = MemoryBudget(rng.choice([70_000, 1 << 20]), posted.append)
    wire = Wire(SMALL, budget=budget, hello=False)
    owner = Owner(wire, rng)
    connection = wire.connection
    index = 0
    while index < len(data) and not connection.is_closed:
        size = rng.choice([1, 9, 50, 1000, 100_000])
        has_more = wire.feed(data[index : index + size])
        index += size
        rounds = 0
        while has_more:
            has_more = wire.feed(b"")
            rounds += 1
            assert rounds < 1 + len(data)
        wire.now_s += 0.001
        owner.finish_some()
        while posted:
            posted.pop(0)()
        if connection.fault is None or connection.fault.code is not (
            ErrorCode.HTTP_1_1_REQUIRED
        ):
            wire.sent()  # whatever we sent are whole frames, HPACK included
        assert len(connection.streams) <= SMALL.max_concurrent_streams
        assert connection.sender.queued_bytes == sum(
            stream.outbox.size_bytes
            for stream in connection.streams.values()
            if stream.outbox is not None
        )
        held = sum(stream.held_bytes for stream in wire.recorder.opened.values())
        admitted = sum(
            stream.ticket.num_bytes
            for stream in wire.recorder.opened.values()
            if stream.ticket is not None and stream.ticket.is_admitted
        )
        unfinished = connection.unfinished_bytes
        assert budget.used_bytes == held + admitted + unfinished
        assert unfinished <= 20_000 + 100_000
    connection.close()
    for stream in wire.recorder.opened.values():
        connection.state.budget.release_all(stream)
    assert budget.used_bytes == 0
    assert not connection.streams
    assert connection.sender.queued_bytes == 0
    return wire


def random_frames(rng: random.Random, num_frames: int, odd: float) -> bytes:
    """Returns frames a client might send, and some no client should (by ``odd``)."""
    blocks = [literal_block(grpc_headers(("x-n", str(n)))) for n in range(3)] + [
        literal_block(grpc_headers()) + b"\x40\x01a\x01b",
        b"\xbe" + literal_block(grpc_headers()),
        b"\x3f\xe1\x1f" + literal_block(grpc_headers()),
        literal_block([("no", "pseudo")]),
        b"\x80",
    ]
    weights = [8, 8, 8, 3, odd / 10, 1, 0.5, odd / 10]
    parts = [HELLO]
    next_id = 1
    unfinished: list[int] = []  # streams the client has not ended yet
    for _ in range(num_frames):
        kind = rng.choices(
            ["request", "headers", "data", "rst", "window", "settings", "ping", "odd"],
            [6, 4, 12, 1, 3, 0.5, 0.5, odd],
        )[0]
        block = rng.choices(blocks, weights)[0]
        message = prefixed(rng.randbytes(rng.choice([0, 5, 500, 6000])))
        if kind == "request":
            parts.append(headers_frame(next_id, block) + data_frame(next_id, message))
            next_id += 2
        elif kind == "headers":
            ends = END_STREAM * (rng.random() < 0.1)
            if rng.random() < 0.2:
                cut = rng.randrange(len(block) + 1)
                parts.append(headers_frame(next_id, block[:cut], ends))
                parts.append(
                    frames.frame(
                        FrameType.CONTINUATION, END_HEADERS, next_id, block[cut:]
                    )
                )
            else:
                parts.append(headers_frame(next_id, block, END_HEADERS | ends))
            if not ends:
                unfinished.append(next_id)
            next_id += 2
        elif kind == "data" and unfinished:
            stream_id = rng.choice(unfinished)
            cut = rng.randrange(len(message) + 1)
            flags = rng.choice([0, 0, END_STREAM, frames.PADDED])
            part = rng.choice([message, message, message[:cut]])
            if flags == frames.PADDED:
                part = b"\x02" + part + b"\0\0"
            if flags == END_STREAM:
                unfinished.remove(stream_id)
            parts.append(data_frame(stream_id, part, flags))
        elif kind == "rst" and unfinished:
            stream_id = unfinished.pop(rng.randrange(len(unfinished)))
            parts.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
        elif kind == "window":
            where = max(0, next_id - 2 - 2 * rng.randrange(6))
            where = rng.choice([0, where if where % 2 else 0])
            parts.append(frames.window_update(where, rng.choice([1, 100, 50_000])))
        elif kind == "settings":
            value = rng.choice([0, 10, 65_535, 1 << 20])
            parts.append(frames.settings({Setting.INITIAL_WINDOW_SIZE: value}))
        elif kind == "ping":
            parts.append(frames.ping(b"12345678", ack=rng.random() < 0.3))
        elif kind == "odd":
            stream_id = rng.choice([0, 1, next_id, next_id + 2])
            parts.append(
                frames.frame(
                    rng.randrange(12), rng.randrange(256), stream_id, rng.randbytes(8)
                )
            )
    return b"".join(parts)


def mutate(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        where = rng.randrange(max(1, len(damaged)))
        what = rng.randrange(5) if damaged else 3
        if what == 0:
            damaged[where] = rng.randrange(256)
        elif what == 1:
            damaged[where] ^= 1 << rng.randrange(8)
        elif what == 2:
            del damaged[where : where + rng.randrange(1, 20)]
        elif what == 3:
            damaged[where:where] = rng.randbytes(rng.randrange(1, 20))
        else:
            size = rng.randrange(1, 200)
            damaged[where:where] = damaged[where : where + size]
    return bytes(damaged)


def run(first_seed: int, num_runs: int) -> tuple[int, int]:
    """Returns how many runs ended closed for a fault, and how many requests arrived.

    Of the runs that were meant well, a share goes wrong all the same: they reset,
    flood and overflow what is small here.
    """
    num_faults = num_requests = 0
    for seed in range(first_seed, first_seed + num_runs):
        rng = random.Random(seed)
        data = random_frames(rng, rng.choice([5, 50, 300]), rng.choice([0, 0.3]))
        if rng.random() < 0.5:
            data = mutate(rng, data)
        try:
            wire = play(data, seed)
        except Exception as error:
            error.add_note(f"seed {seed}: {data.hex()}")
            raise
        num_faults += wire.connection.fault is not None
        num_requests += sum(event[0] == "request" for event in wire.recorder.events)
    return num_faults, num_requests


def test_random_clients_are_answered_or_closed() -> None:
    """A few hundred runs of plausible and damaged traffic, which reach either end."""
    num_faults, num_requests = run(first_seed=0, num_runs=400)
    assert 100 < num_faults < 400
    assert num_requests > 400


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first_seed", range(1_000_000, 1_100_000, 10_000))
def test_very_many_random_clients_are_answered_or_closed(first_seed: int) -> None:
    """The same for a hundred thousand seeds."""
    num_faults, num_requests = run(first_seed, num_runs=10_000)
    assert num_faults < 10_000 < num_requests


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_answered_or_closed(data: bytes, greets: bool) -> None:
    """No structure at all, with and without the preface."""
    wire = play(HELLO + data if greets else data)
    assert not wire.connection.streams


@pytest.mark.parametrize("path", sorted(DATA.glob("*.bin")), ids=lambda path: path.name)
def test_what_once_failed_is_answered_or_closed(path: Path) -> None:
    """Bytes that fuzzing found a fault with, whatever way they are cut."""
    for seed in range(20):
        play(path.read_bytes(), seed)
