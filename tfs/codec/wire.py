"""Reads protobuf's wire format where it pays to do that without message objects.

It accepts and refuses exactly what protobuf's own C parser (upb) does: a varint has at
most ten bytes, a tag at most five, field number 0 and wire types 6 and 7 do not exist,
and groups nest and close by number. Values are positions in the caller's buffer, so
nothing is copied. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfs.core.tensor_view import Buffer

VARINT: Final = 0
FIXED64: Final = 1
DELIMITED: Final = 2
START_GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5

MAX_DEPTH: Final = 100
"""How deep groups may nest; protobuf's own limit for messages and groups."""

_UINT64: Final = (1 << 64) - 1
_UINT32: Final = (1 << 32) - 1
_INT32: Final = (1 << 31) - 1


class MalformedError(ValueError):
    """The bytes are not the wire format of any message."""


def read_varint(buffer: Buffer, index: int) -> tuple[int, int]:
    """Reads an unsigned 64-bit varint; returns it and the index after it.

    Bits above the 64th are dropped, as protobuf does.

    Raises:
        IndexError: The buffer ends inside it.
        MalformedError: It has more than ten bytes.

    """
    value = buffer[index]
    if value < 0x80:
        return value, index + 1
    value &= 0x7F
    shift = 7
    for position in range(index + 1, index + 10):
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, position + 1
        shift += 7
    raise MalformedError("a varint of more than ten bytes")


def read_size(buffer: Buffer, index: int) -> tuple[int, int]:
    """Reads the length of a delimited field; returns it and the index after it.

    Raises:
        IndexError: The buffer ends inside it.
        MalformedError: It exceeds 2**31 - 1, or has more than ten bytes.

    """
    size, after = read_varint(buffer, index)
    if size > _INT32:
        raise MalformedError("a length beyond 2**31 - 1")
    return size, after


def read_tag(buffer: Buffer, index: int) -> tuple[int, int, int]:
    """Reads a tag; returns field number, wire type and the index after it.

    Raises:
        IndexError: The buffer ends inside it.
        MalformedError: Field number 0, an unknown wire type, or an overlong tag.

    """
    tag, after = read_varint(buffer, index)
    if tag > _UINT32 or after - index > 5:
        raise MalformedError("a tag beyond 2**32 - 1")
    number = tag >> 3
    kind = tag & 7
    if number == 0 or kind > FIXED32:
        raise MalformedError(f"field number {number} with wire type {kind}")
    return number, kind, after


def fields(
    buffer: Buffer, start: int, stop: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields (field number, wire type, start, stop) of each field of a message.

    The positions span a delimited field's contents, a number's own bytes, or what
    lies between a group's two tags. Fields come in the order of the bytes.

    Raises:
        MalformedError: Somewhere in the message; fields before it were yielded.

    """
    index = start
    try:
        while index < stop:
            byte = buffer[index]
            if 7 < byte < 0x80 and byte & 7 == DELIMITED:
                # Mostly so. Without the calls below it takes half the time.
                first = index + 2
                size = buffer[index + 1]
                if size >= 0x80:
                    size, first = read_size(buffer, index + 1)
                index = first + size
                if index > stop:
                    raise MalformedError("a field that is longer than its message")
                yield byte >> 3, DELIMITED, first, index
                continue
            number, kind, first = read_tag(buffer, index)
            if kind == DELIMITED:
                size, first = read_size(buffer, first)
                last = index = first + size
            elif kind == START_GROUP:
                last, index = _skip_group(buffer, first, stop, number, 1)
            else:
                last = index = _skip_number(buffer, first, kind)
            if index > stop:
                raise MalformedError("a field that is longer than its message")
            yield number, kind, first, last
    except IndexError:
        raise MalformedError("the message is cut off") from None


def has_more_fields(buffer: Buffer, start: int, stop: int, most: int) -> bool:
    """Tells whether a message has more than ``most`` fields, without reading all of them.

    Returns False for a malformed message: the parser reports that.
    """
    try:
        for number, _ in enumerate(fields(buffer, start, stop), 1):
            if number > most:
                return True
    except MalformedError:
        pass
    return False


def varint(value: int) -> bytes:
    """Returns the varint of ``value``; a negative one takes ten bytes, as int64."""
    if value < 0:
        value &= _UINT64
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, kind: int) -> bytes:
    """Returns the tag of a field."""
    return varint(number << 3 | kind)


def delimited(number: int, contents: bytes) -> bytes:
    """Returns a whole delimited field."""
    return b"".join((tag(number, DELIMITED), varint(len(contents)), contents))


def _skip_number(buffer: Buffer, index: int, kind: int) -> int:
    if kind == VARINT:
        return read_varint(buffer, index)[1]
    if kind == FIXED64:
        return index + 8
    if kind == FIXED32:
        return index + 4
    raise MalformedError("the end of a group that did not begin")


def _skip_group(
    buffer: Buffer, index: int, stop: int, number: int, depth: int
) -> tuple[int, int]:
    """Returns where the group's contents end and where its closing tag ends."""
    if depth > MAX_DEPTH:
        raise MalformedError("groups nest too deep")
    while index < stop:
        inner, kind, after = read_tag(buffer, index)
        if kind == END_GROUP:
            if inner != number:
                raise MalformedError(f"group {number} ends as {inner}")
            return index, after
        if kind == DELIMITED:
            size, after = read_size(buffer, after)
            index = after + size
        elif kind == START_GROUP:
            index = _skip_group(buffer, after, stop, inner, depth + 1)[1]
        else:
            index = _skip_number(buffer, after, kind)
    raise MalformedError("a group without an end")


_SINGLE: Final = tuple(bytes([value]) for value in range(0x80))
