"""The wire format's primitives against protobuf's own parser."""

from __future__ import annotations

import pytest
from google.protobuf import empty_pb2, unknown_fields
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfs.codec import wire

INTERESTING = (0, 1, 127, 128, 300, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -1, -300)


def ours(message: bytes) -> list[tuple[int, int]] | None:
    """Returns number and wire type of each field; None if it is malformed."""
    try:
        found = list(wire.fields(message, 0, len(message)))
    except wire.MalformedError:
        return None
    return [(number, kind) for number, kind, _, _ in found]


def upbs(message: bytes) -> list[tuple[int, int]] | None:
    """The same, by a message type that knows no fields."""
    try:
        parsed = empty_pb2.Empty.FromString(message)
    except DecodeError:
        return None
    found = unknown_fields.UnknownFieldSet(parsed)
    return [(found[i].field_number, found[i].wire_type) for i in range(len(found))]


@pytest.mark.parametrize("value", INTERESTING)
def test_a_varint_reads_as_written(value: int) -> None:
    """Negative numbers take ten bytes and read as unsigned 64-bit."""
    written = wire.varint(value)
    assert wire.read_varint(written, 0) == (value % (1 << 64), len(written))
    for size in range(len(written)):
        with pytest.raises(IndexError):
            wire.read_varint(written[:size], 0)


def test_a_varint_of_eleven_bytes_is_malformed() -> None:
    """Ten bytes hold 64 bits; more are an attack or a mistake."""
    assert wire.read_varint(b"\x80" * 9 + b"\x00", 0) == (0, 10)
    with pytest.raises(wire.MalformedError):
        wire.read_varint(b"\x80" * 10 + b"\x00", 0)


TAGS = [
    b"\x00",  # field number 0
    b"\x06\x00",  # wire type 6
    b"\x0f\x00",  # wire type 7
    b"\x0c",  # the end of a group that did not begin
    b"\x0b",  # a group without an end
    b"\x0b\x0c",
    b"\x0b\x14",  # closed by another number
    b"\x0b\x08\x01\x13\x14\x0c",
    b"\x0b\x12\x02\x0c\x0c\x0c",
    b"\x0b" * 99 + b"\x0c" * 99,
    b"\x0b" * 100 + b"\x0c" * 100,
    b"\x0b" * 101 + b"\x0c" * 101,
    b"\x88\x00\x01",  # an overlong tag
    b"\x88\x80\x80\x80\x00\x01",
    b"\x88\x80\x80\x80\x80\x00\x01",
    b"\xf8\xff\xff\xff\x0f\x01",  # the highest field number
    b"\xf8\xff\xff\xff\x1f\x01",
    b"\x12\x80\x00",  # an overlong length
    b"\x12\x80\x80\x80\x80\x00",
    b"\x12\x80\x80\x80\x80\x80\x00",
    b"\x12\xff\xff\xff\xff\x07",  # a length of 2**31 - 1
    b"\x12\x80\x80\x80\x80\x08",
    b"\x12\x03ab",
    b"\x08",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x80\x00",
    b"\x09\x01\x02\x03\x04\x05\x06\x07",
    b"\x09\x01\x02\x03\x04\x05\x06\x07\x08",
    b"\x0d\x01\x02\x03",
    b"\x0d\x01\x02\x03\x04",
]


@pytest.mark.parametrize("message", TAGS, ids=bytes.hex)
def test_borderline_messages_are_taken_as_protobuf_takes_them(message: bytes) -> None:
    """Each limit of the wire format, on both sides of it."""
    assert ours(message) == upbs(message)


PIECES = st.one_of(
    st.sampled_from(TAGS),
    st.binary(max_size=12),
    st.builds(wire.tag, st.integers(0, 20), st.integers(0, 7)),
    st.builds(wire.varint, st.sampled_from(INTERESTING)),
    st.builds(wire.delimited, st.integers(1, 20), st.binary(max_size=12)),
)


@given(st.lists(PIECES, max_size=8))
@settings(deadline=None)
@example([b"\x0b", b"\x12\x01\x0c", b"\x0c"])
def test_any_bytes_are_taken_as_protobuf_takes_them(pieces: list[bytes]) -> None:
    """Same messages accepted, same fields found."""
    message = b"".join(pieces)
    assert ours(message) == upbs(message)


def test_positions_span_the_contents() -> None:
    """A delimited field's bytes, a number's own bytes, a group without its tags."""
    message = b"\x12\x02ab" + b"\x08\x96\x01" + b"\x0b\x10\x01\x0c" + b"\x0d\1\2\3\4"
    assert [
        (number, message[start:stop])
        for number, _, start, stop in wire.fields(message, 0, len(message))
    ] == [(2, b"ab"), (1, b"\x96\x01"), (1, b"\x10\x01"), (1, b"\1\2\3\4")]


def test_a_part_of_a_buffer_is_read_within_its_bounds() -> None:
    """A field that leaves its message is malformed, whatever lies behind."""
    message = b"\x12\x04abcdef"
    assert len(list(wire.fields(message, 0, 6))) == 1
    with pytest.raises(wire.MalformedError):
        list(wire.fields(message, 0, 5))
