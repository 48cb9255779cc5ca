"""What is known of streams that are not there."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.express.wire import prefixed
from tfs.core.errors import Code, ServingError
from tfs.frontends.http2.frames import HEAD_SIZE, ErrorCode, unpack_head
from tfs.frontends.http2.stream import (
    STEPS,
    Outbox,
    Output,
    Reaction,
    Signal,
    StreamState,
    StreamTable,
    Upload,
    step,
)


def _table(last_id: int) -> StreamTable:
    table = StreamTable()
    table.last_id = last_id
    return table


@pytest.mark.parametrize(
    ("stream_id", "state"),
    [
        (5, StreamState.CLOSED),
        (1, StreamState.CLOSED),
        (7, StreamState.IDLE),
        (4, StreamState.IDLE),
        (8, StreamState.IDLE),
    ],
)
def test_an_unknown_stream_is_closed_or_yet_to_be_opened(
    stream_id: int, state: StreamState
) -> None:
    """Odd ids up to the last are closed; higher and even ones are idle."""
    assert _table(5).state_of(stream_id) is state


def test_a_stream_we_reset_is_told_apart_for_a_while() -> None:
    """The latest thousand are remembered, the oldest forgotten first."""
    table = _table(5001)
    for stream_id in range(1, 3001, 2):
        table.remember_reset(stream_id)
    assert table.state_of(2999) is StreamState.RESET
    assert table.state_of(1) is StreamState.CLOSED


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=5),
    st.lists(st.integers(min_value=1, max_value=30), min_size=1),
)
def test_any_split_yields_the_same_messages(
    messages: list[tuple[bytes, bool]], sizes: list[int]
) -> None:
    """Prefixes and bodies may be cut anywhere, several may share a chunk."""
    data = b"".join(prefixed(body, flag) for body, flag in messages)
    upload = Upload(1000)
    found = []
    index = turn = 0
    while index < len(data):
        size = sizes[turn % len(sizes)]
        chunk = memoryview(data)[index : index + size]
        found += [(bytes(body), flag) for flag, body in upload.feed(chunk)]
        index += size
        turn += 1
    assert found == messages
    assert upload.is_between_messages


def test_an_unfinished_message_is_noticed() -> None:
    """The end of the stream may come too early, within prefix or body."""
    upload = Upload(1000)
    for byte in prefixed(b"abc")[:-1]:
        assert list(upload.feed(memoryview(bytes((byte,))))) == []
        assert not upload.is_between_messages


def test_a_message_too_long_is_refused_by_its_prefix() -> None:
    """Its prefix is enough to refuse it, before any of its body has arrived."""
    with pytest.raises(ServingError) as caught:
        list(Upload(10).feed(memoryview(b"\0\0\0\0\x0b")))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_an_unknown_flag_is_refused() -> None:
    """Only 0 and 1 are defined."""
    with pytest.raises(ServingError) as caught:
        list(Upload(10).feed(memoryview(b"\x02\0\0\0\0")))
    assert caught.value.code is Code.INTERNAL


def test_large_messages_arrive_as_they_were_sent() -> None:
    """A large message arrives intact through every size that its pages take."""
    body = bytes(range(251)) * 20_000
    data = memoryview(prefixed(body))
    upload = Upload(1 << 23)
    assert list(upload.feed(data[:10_007])) == []
    upload.give_memory()
    found = [
        bytes(message)
        for start in range(10_007, len(data), 10_007)
        for _, message in upload.feed(data[start : start + 10_007])
    ]
    assert found == [body]


def test_a_claim_takes_no_memory_of_its_own() -> None:
    """An announced length takes no memory before a byte of the message has come."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        uploads = [Upload(1 << 30) for _ in range(1000)]
        for upload in uploads:
            assert list(upload.feed(memoryview(b"\0\0\x10\0\0"))) == []
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000


def payloads(wire: bytes, stream_id: int) -> list[bytes]:
    """Returns the payloads of DATA frames without flags, which is all there may be."""
    found = []
    while wire:
        word, flags, frame_stream_id = unpack_head(wire)
        assert (word & 0xFF, flags, frame_stream_id) == (0, 0, stream_id)
        end = HEAD_SIZE + (word >> 8)
        found.append(wire[HEAD_SIZE:end])
        wire = wire[end:]
    return found


@given(
    st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=6),
    st.lists(st.integers(1, 60), min_size=1),
    st.integers(1, 20),
)
def test_any_split_sends_the_same_bytes(
    parts: list[bytes], moves: list[int], largest_frame: int
) -> None:
    """However windows open and whatever the largest frame is, nothing is lost."""
    outbox = Outbox()
    for part in parts:
        outbox.add(part)
    sent: list[bytes] = []
    turn = 0
    while outbox:
        out: Output = []
        size = min(outbox.size_bytes, moves[turn % len(moves)])
        before = outbox.size_bytes
        outbox.move(out, 7, size, largest_frame)
        found = payloads(b"".join(out), 7)
        assert len(found) == -(-size // largest_frame)
        assert all(0 < len(payload) <= largest_frame for payload in found)
        assert outbox.size_bytes == before - size
        sent += found
        turn += 1
    assert b"".join(sent) == b"".join(parts)


def test_more_may_be_put_in_meanwhile() -> None:
    """A stream's next message follows the one that is under way."""
    outbox = Outbox()
    outbox.add(b"abcdef")
    out: Output = []
    outbox.move(out, 1, 4, 100)
    outbox.add(b"ghi")
    outbox.move(out, 1, 5, 100)
    assert payloads(b"".join(out), 1) == [b"abcd", b"efghi"]
    assert not outbox


def test_small_parts_are_joined_behind_what_was_sent() -> None:
    """A thousand small messages are a few parts; what is sent stays in order."""
    outbox = Outbox()
    expected = b""
    sent = b""
    for index in range(1000):
        part = bytes([index % 251]) * (index % 40)
        outbox.add(part)
        expected += part
        if index % 7 == 0 and outbox:
            out: Output = []
            outbox.move(out, 1, min(5, outbox.size_bytes), 16_384)
            sent += b"".join(bytes(each) for each in out[1::2])
    assert len(outbox._parts) <= 1 + len(expected) // 4096
    out = []
    outbox.move(out, 1, outbox.size_bytes, 1 << 20)
    assert sent + b"".join(bytes(each) for each in out[1:]) == expected
    assert not outbox


def test_what_waits_keeps_no_memory_of_others() -> None:
    """An answer that is a part of its batch's would keep the whole of it."""
    batch = bytearray(100_000)
    outbox = Outbox()
    outbox.add(memoryview(batch)[:50_000])
    with pytest.raises(BufferError):
        batch.clear()
    outbox.detach()
    batch.clear()
    assert outbox.size_bytes == 50_000


# Written down a second time, from RFC 9113 section 5.1 and not from the table: per
# state what each signal does. "=" accepts, "." ignores, "r" resets the stream, "C" closes
# the connection. The columns are the signals in order:
# DATA DATA+END HEADERS HEADERS+END RST_STREAM WINDOW_UPDATE.
EXPECTED = {
    StreamState.IDLE: "C C = = C C",
    StreamState.OPEN: "= = r = = =",
    StreamState.REQUESTED: "r r r r = =",
    StreamState.CLOSED: "C C C C . .",
    StreamState.RESET: ". . . . . .",
}
MARKS = {
    "=": Reaction.ACCEPT,
    ".": Reaction.IGNORE,
    "r": Reaction.RESET_STREAM,
    "C": Reaction.CLOSE_CONNECTION,
}


@pytest.mark.parametrize("state", EXPECTED, ids=lambda state: state.name)
def test_each_signal_does_what_the_rfc_says(state: StreamState) -> None:
    """Every (state, signal) pair has the reaction of RFC 9113."""
    for signal, expected in zip(Signal, EXPECTED[state].split(), strict=True):
        found = step(state, signal)
        assert found.reaction is MARKS[expected]


def test_the_table_is_total() -> None:
    """No pair is missing, so no peer can reach a KeyError."""
    assert set(STEPS) == set(StreamState)
    for row in STEPS.values():
        assert set(row) == set(Signal)


def test_only_faults_carry_an_error_code() -> None:
    """A reset or a closed connection says why; nothing else has an error."""
    faults = (Reaction.RESET_STREAM, Reaction.CLOSE_CONNECTION)
    for row in STEPS.values():
        for found in row.values():
            is_fault = found.reaction in faults
            assert is_fault == (found.error is not ErrorCode.NO_ERROR)
