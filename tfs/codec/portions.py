"""Large fields, read and copied a portion at a time.

upb keeps Python's lock until it is done. For ten megabytes of numbers or strings the
serving loop would stand still for 20 to 200 ms, whichever thread reads them. Between
two portions of a few tenths of a millisecond each, other threads get their turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tfs.codec.wire import MalformedError, read_size
from tfs.core.tensor_view import Buffer

PORTION_BYTES: Final = 16_384

_COPIED_BYTES: Final = 1 << 20
_LONGEST_VARINT: Final = 10
_WINDOW_BYTES: Final = 65_536


def joined(parts: Iterable[Buffer]) -> bytes:
    """Returns the concatenated contents of several buffers."""
    pieces: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
        else:
            starts = range(0, len(part), _COPIED_BYTES)
            pieces += [bytes(part[start : start + _COPIED_BYTES]) for start in starts]
    # Python gives up its lock while it joins these only if all of them are bytes.
    return b"".join(pieces)


def varint_portions(packed: memoryview) -> Iterator[bytes]:
    """Yields a packed field of varints in pieces that end where varints end.

    Raises:
        MalformedError: A varint has more than ten bytes; perhaps not at once.

    """
    start, size = 0, len(packed)
    while start < size:
        stop = min(start + PORTION_BYTES, size)
        latest = min(stop + _LONGEST_VARINT, size)
        while packed[stop - 1] >= 0x80 and stop < size:
            if stop == latest:
                raise MalformedError("a varint of more than ten bytes")
            stop += 1
        yield bytes(packed[start:stop])
        start = stop


def read_strings(
    message: Buffer,
    first: int,
    stop: int,
    tag: int,
    most: int,
    enough: int | None = None,
) -> tuple[list[bytes], int, int]:
    """Reads the strings of a repeated field that follow each other directly.

    Args:
        message: The bytes that contain them.
        first: Offset of the first entry's tag.
        stop: Offset at which the message with the entries ends.
        tag: The field's tag; one byte.
        most: How many are kept; the others are only counted.
        enough: Beyond so many, no more need be read.

    Returns:
        The strings that are kept, the number of all, and the index after the last one:
        that of another field, or ``stop``.

    Raises:
        IndexError: A string is cut off.
        MalformedError: A string is longer than the message, or its length is malformed.

    """
    strings: list[bytes] = []
    append = strings.append
    whole = memoryview(message)
    num = 0
    while first < stop:
        # Bytes are read twice as fast as views of them.
        window = bytes(whole[first : min(first + _WINDOW_BYTES, stop)])
        size = len(window)
        index = 0
        while index + 1 < size and window[index] == tag:
            length = window[index + 1]
            begin = index + 2
            if length >= 0x80:
                if size - index < _LONGEST_VARINT + 1:
                    break  # the length may be cut off
                high = window[begin]
                if high < 0x80:  # mostly so: up to 16 KB
                    length = length & 0x7F | high << 7
                    begin += 1
                else:
                    length, begin = read_size(window, index + 1)
            end = begin + length
            if end > size:
                break
            num += 1
            if num <= most:
                append(window[begin:end])
            index = end
        first += index
        if enough is not None and num > enough:
            break
        if index:
            continue
        if first == stop or message[first] != tag:
            break
        # One that is longer than the window, or cut off.
        length, begin = read_size(message, first + 1)
        if begin + length > stop:
            raise MalformedError("a string that is longer than its message")
        num += 1
        if num <= most:
            append(bytes(whole[begin : begin + length]))
        first = begin + length
    return strings, num, first
