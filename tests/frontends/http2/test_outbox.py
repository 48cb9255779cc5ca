"""What waits to be sent leaves in order, in frames the client takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs.frontends.http2.frames import HEAD_SIZE, unpack_head
from tfs.frontends.http2.stream import Outbox, Output


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
