"""Reads requests of small methods, each within the number of bytes that it may have."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError

from tfs.core.errors import InvalidArgument, ResourceExhausted

M = TypeVar("M", covariant=True)


class _MessageType(Protocol[M]):
    """A generated message class."""

    def FromString(self, s: bytes, /) -> M: ...


QUESTION_BYTES: Final = 1 << 16
"""Longest request, in bytes, of methods that only ask for information or name a model.
They are parsed on the serving loop."""

NAMES_BYTES: Final = 1 << 20
"""Longest request, in bytes, of a method that takes the names of many models."""

CONFIG_BYTES: Final = 8 << 20
"""Longest request, in bytes, with a configuration; that is enough for a hundred
thousand models. Parsing it takes up to 0.1 s and holds Python's lock, whichever thread
does it."""


def parse(
    message_type: _MessageType[M],
    message: bytes | memoryview,
    max_bytes: int | None = None,
) -> M:
    """Returns the parsed request.

    Raises:
        InvalidArgument: The bytes are no such message.
        ResourceExhausted: They are more than ``max_bytes``, if that is given.

    """
    if max_bytes is not None and len(message) > max_bytes:
        raise ResourceExhausted(
            f"a request of {len(message)} bytes; this method takes {max_bytes}"
        )
    try:
        return message_type.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the request: {error}") from error
