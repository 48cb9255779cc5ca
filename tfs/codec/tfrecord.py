"""TFRecord: a file of byte strings, each with its length and two checksums.

    uint64 length | uint32 crc of the length | the record | uint32 crc of the record

All little-endian; the checksum is CRC-32C, rotated and shifted ("masked") so that a
checksum over data that contains checksums stays meaningful. Warm-up files and request
logs have this form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

import google_crc32c

from tfs.core.errors import DataLoss

MAX_RECORD_BYTES: Final = (1 << 31) - 1
"""Protobuf's limit for a message, which every record here is."""

_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_MASK_DELTA: Final = 0xA282EAD8
_CHUNK_BYTES: Final = 16 << 20
_CHECKED_BYTES: Final = 1 << 20


def masked_crc(data: bytes) -> int:
    """Returns the masked CRC-32C of ``data``."""
    crc = 0
    for start in range(0, len(data), _CHECKED_BYTES):  # other threads get a turn
        crc = google_crc32c.extend(crc, data[start : start + _CHECKED_BYTES])
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Returns the bytes of ``record`` in a file; append frames to write a file."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            _FOOTER.pack(masked_crc(length)),
            record,
            _FOOTER.pack(masked_crc(record)),
        )
    )


def read_records(file: BinaryIO, num_bytes: int | None = None) -> Iterator[bytes]:
    """Yields the records of a file from its present position, one in memory at a time.

    Memory grows with what was read, not with what a length claims. Blocks if the file
    does.

    Args:
        file: The file to read.
        num_bytes: Records that begin after so many bytes are not read; None reads all.

    Raises:
        DataLoss: A checksum does not match, the file ends inside a record, or a record
            is longer than ``MAX_RECORD_BYTES``; says at which offset. Records before it were
            yielded.

    """
    offset = 0
    while num_bytes is None or offset < num_bytes:
        where = f"the record at byte {offset}"
        header = _read(file, _HEADER.size)
        if not header:
            return
        if len(header) < _HEADER.size:
            raise DataLoss(f"truncated record: {where} ends inside its header")
        size, crc = _HEADER.unpack(header)
        if crc != masked_crc(header[:8]):
            raise DataLoss(f"corrupted record: the length of {where} fails its check")
        if size > MAX_RECORD_BYTES:
            raise DataLoss(f"{where} has {size} bytes, more than {MAX_RECORD_BYTES}")
        record = _read(file, size)
        footer = _read(file, _FOOTER.size)
        if len(record) < size or len(footer) < _FOOTER.size:
            raise DataLoss(f"truncated record: the file ends inside {where}")
        if _FOOTER.unpack(footer)[0] != masked_crc(record):
            raise DataLoss(f"corrupted record: {where} fails its check")
        yield record
        offset += _HEADER.size + size + _FOOTER.size


def _read(file: BinaryIO, num_bytes: int) -> bytes:
    """Reads ``num_bytes``, or what is left of the file."""
    chunks = []
    while num_bytes > 0:
        chunk = file.read(min(num_bytes, _CHUNK_BYTES))
        if not chunk:
            break
        chunks.append(chunk)
        num_bytes -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
