"""Large fields come out whole, however they are cut into portions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs.codec import wire
from tfs.codec.portions import PORTION_BYTES, read_strings, varint_portions
from tfs.codec.wire import MalformedError

TAG = 0x42


def _field(text: bytes) -> bytes:
    return bytes([TAG]) + wire.varint(len(text)) + text


@pytest.mark.parametrize("longest", [1, 3, 10])
def test_varints_are_cut_between_each_other(longest: int) -> None:
    """Portions are whole varints, and together they are the field."""
    rng = random.Random(longest)
    packed = b"".join(
        wire.varint(rng.getrandbits(7 * longest) % (1 << 64)) for _ in range(20_000)
    )
    portions = list(varint_portions(memoryview(packed)))
    assert b"".join(portions) == packed
    assert all(part[-1] < 0x80 for part in portions)
    assert all(len(part) <= PORTION_BYTES + 10 for part in portions)


def test_an_endless_varint_is_malformed() -> None:
    """It is no reason to look for its end."""
    packed = b"\x01" * (PORTION_BYTES - 5) + b"\x80" * 1000
    with pytest.raises(MalformedError):
        list(varint_portions(memoryview(packed)))


def test_a_varint_that_is_cut_off_stays_so() -> None:
    """A varint that is cut off is left as it is, for the decoder to refuse."""
    packed = b"\x01" * (PORTION_BYTES - 1) + b"\x80\x80"
    assert b"".join(varint_portions(memoryview(packed))) == packed


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=5),
            st.sampled_from([127, 128, 16_383, 16_384, 65_533, 70_000]).map(bytes),
        ),
        max_size=40,
    ),
    st.binary(max_size=2),
    st.integers(0, 50),
)
def test_strings_are_read_whatever_their_lengths(
    texts: list[bytes], head: bytes, most: int
) -> None:
    """Strings may lie within windows, across them, or be longer than they are."""
    fields = b"".join(_field(text) for text in texts)
    message = head + fields + b"\x08\x01"
    stop = len(message)
    for buffer in (message, memoryview(message), bytearray(message)):
        strings, num, end = read_strings(buffer, len(head), stop, TAG, most)
        assert strings == texts[:most]
        assert num == len(texts)
        assert end == len(head) + len(fields)


@pytest.mark.parametrize("length", [b"\x83\x00", b"\x83\x80\x00", b"\x83\x80\x80\x00"])
def test_a_length_may_take_more_bytes_than_it_needs(length: bytes) -> None:
    """protobuf reads it like any other."""
    fields = bytes([TAG]) + length + b"abc" + _field(bytes(20))
    strings, num, end = read_strings(fields, 0, len(fields), TAG, 9)
    assert strings == [b"abc", bytes(20)]
    assert (num, end) == (2, len(fields))


@pytest.mark.parametrize("size", [3, 200, 70_000])
def test_a_string_that_is_cut_off_is_no_string(size: int) -> None:
    """Wherever the message ends inside it."""
    whole = _field(b"a") + _field(bytes(size))
    for missing in {1, 2, size, size + 1}:
        with pytest.raises((MalformedError, IndexError)):
            read_strings(whole, 0, len(whole) - missing, TAG, 9)
