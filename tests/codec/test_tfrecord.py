"""TFRecord files: what TensorFlow writes is read, and nothing broken passes."""

from __future__ import annotations

import io
import struct

import pytest

from tfs.codec.tfrecord import frame, masked_crc, read_records
from tfs.core.errors import DataLoss

RECORDS = [b"", b"a", bytes(range(256)) * 300]


def read(data: bytes, num_bytes: int | None = None) -> list[bytes]:
    return list(read_records(io.BytesIO(data), num_bytes))


def crc32c(data: bytes) -> int:
    """The checksum bit by bit, from its polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_records_come_back_as_written() -> None:
    """Any bytes, the empty record included, in order."""
    assert read(b"".join(frame(record) for record in RECORDS)) == RECORDS
    assert read(b"") == []


def test_the_checksum_is_masked_crc32c() -> None:
    """Known answer of RFC 3720, and the definition on other data."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    for data in (b"", b"123456789", bytes(32), RECORDS[2][:999]):
        crc = crc32c(data)
        rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
        assert masked_crc(data) == (rotated + 0xA282EAD8) & 0xFFFFFFFF


def test_the_frame_has_tensorflows_layout() -> None:
    """Length, its checksum, record, its checksum, all little-endian."""
    length = struct.pack("<Q", 3)
    expected = length + struct.pack("<I", masked_crc(length))
    expected += b"abc" + struct.pack("<I", masked_crc(b"abc"))
    assert frame(b"abc") == expected


def test_every_cut_is_noticed() -> None:
    """A file that ends anywhere but between records is damaged."""
    whole = frame(b"first") + frame(b"second")
    boundaries = {0: 0, len(frame(b"first")): 1, len(whole): 2}
    for size in range(len(whole) + 1):
        if size in boundaries:
            assert len(read(whole[:size])) == boundaries[size]
        else:
            with pytest.raises(DataLoss):
                read(whole[:size])


def test_every_flipped_bit_is_noticed() -> None:
    """Both checksums together cover every byte."""
    whole = frame(b"record")
    for index in range(len(whole)):
        for bit in range(8):
            broken = bytearray(whole)
            broken[index] ^= 1 << bit
            with pytest.raises(DataLoss):
                read(bytes(broken))


def test_records_before_the_damage_are_read_and_it_is_located() -> None:
    """The error says where; what came before was fine."""
    first = frame(b"fine")
    records = read_records(io.BytesIO(first + b"x" * 12))
    assert next(records) == b"fine"
    with pytest.raises(DataLoss, match=f"at byte {len(first)}"):
        next(records)


def test_a_length_beyond_the_limit_is_refused() -> None:
    """A file cannot make the reader take a record of any size."""
    length = struct.pack("<Q", 1 << 40)
    with pytest.raises(DataLoss, match="more than"):
        read(length + struct.pack("<I", masked_crc(length)))


def test_a_file_that_reads_in_small_pieces_is_read() -> None:
    """Pipes and sockets return less than was asked for."""

    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 7))

    data = b"".join(frame(record) for record in RECORDS)
    assert list(read_records(Dribble(data))) == RECORDS
