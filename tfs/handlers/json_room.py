"""Bounds bodies of JSON, and takes room for what they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tfs.core.errors import ResourceExhausted
from tfs.core.http_call import HttpCall

_PARSED_FACTOR: Final = 10  # what JSON takes when it is parsed, over its bytes
_ROOM_BYTES: Final = 1 << 16  # transports have room for so little unasked


@dataclass(frozen=True, slots=True)
class JsonRoom:
    """The bound. Immutable.

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
                f"{num_bytes} bytes of JSON are more than --max_json_bytes "
                f"{self.max_json_bytes} allows; send tensors in a binary form"
            )
        parsed_bytes = _PARSED_FACTOR * num_bytes
        return parsed_bytes <= _ROOM_BYTES or call.take_room(parsed_bytes)
