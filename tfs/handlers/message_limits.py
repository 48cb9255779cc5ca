"""How long requests may be that are read whole: those of small methods, and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError

from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.http_call import HttpCall

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


PARSED_FACTOR: Final = 10  # what JSON takes when it is parsed, over its bytes
_ROOM_BYTES: Final = 1 << 16  # transports have room for so little unasked


@dataclass(frozen=True, slots=True)
class JsonRoom:
    """Bounds bodies of JSON, and takes room for what they become. Immutable.

    Attributes:
        max_json_bytes: Longest JSON. Parsing holds Python's lock for some 7 ms a
            megabyte.

    """

    max_json_bytes: int

    def take(self, call: HttpCall, num_bytes: int) -> bool:
        """Takes room for so much JSON, parsed; False if the call comes again later.

        Raises:
            ResourceExhausted: It is longer than JSON may be.

        """
        if num_bytes > self.max_json_bytes:
            raise ResourceExhausted(
                f"{num_bytes} bytes of JSON are more than the {self.max_json_bytes} "
                "that --max_json_bytes and --max_receive_bytes allow; send tensors in a "
                "binary form"
            )
        parsed_bytes = PARSED_FACTOR * num_bytes
        return parsed_bytes <= _ROOM_BYTES or call.take_room(parsed_bytes, is_all=True)
