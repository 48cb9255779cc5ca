"""How much a message may make the server allocate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from tfs.core.errors import ResourceExhausted

MAX_FIELDS: Final = 65_536
"""Most inputs and outputs of a request, and most features of an Example. No honest
request has more; as message objects they would take many times their size on the
wire, and parsing them would hold up every thread."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How much a message may make the server allocate. Immutable.

    Attributes:
        max_tensor_bytes: Most bytes that a request's tensors may take beyond what it
            sent: for all that follows, for padding, and for the objects of very short
            strings.
        max_fill_bytes: Most of these for shapes that claim more elements than there are
            values, which cost their sender nothing. A string that is filled in counts
            as eight bytes. At most ``max_tensor_bytes``.
        quick_bytes: Longest message that a quick decoding may parse.
        quick_fill_bytes: Most bytes that a quick decoding may fill in.

    """

    max_tensor_bytes: int = 64 << 20
    max_fill_bytes: int = 16 << 20
    quick_bytes: int = 32 << 10
    quick_fill_bytes: int = 1 << 16

    @classmethod
    def of_fill(cls, max_fill_bytes: int) -> Self:
        """Returns options that let as much be filled in."""
        return cls(max(cls().max_tensor_bytes, max_fill_bytes), max_fill_bytes)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


DEFAULT_OPTIONS: Final = DecodeOptions()


class FillBudget:
    """How much may still be filled in for one request. Confined to its decoder.

    Attributes:
        limit_bytes: The most that may be filled in, and taken for objects.
        num_bytes: Bytes that were filled in, or are taken for objects.
        taken_bytes: These, and what values take beyond their bytes on the wire.

    Args:
        limit_bytes: As above.
        reserve: Called with ``taken_bytes`` before these are allocated. It may raise,
            so that the request is read again later.
        max_fill_bytes: The most that may be filled in, if that is less than
            ``limit_bytes``.

    """

    __slots__ = (
        "_fill_bytes",
        "_max_fill_bytes",
        "_reserve",
        "limit_bytes",
        "num_bytes",
        "taken_bytes",
    )

    def __init__(
        self,
        limit_bytes: int = DEFAULT_OPTIONS.max_tensor_bytes,
        reserve: Callable[[int], None] | None = None,
        max_fill_bytes: int = DEFAULT_OPTIONS.max_fill_bytes,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self.taken_bytes = 0
        self._reserve = reserve
        self._fill_bytes = 0
        self._max_fill_bytes = min(max_fill_bytes, limit_bytes)

    def widen(self, num_bytes: int) -> None:
        """Counts what values take beyond their bytes on the wire; this has no limit."""
        if num_bytes > 0:
            self.taken_bytes += num_bytes
            if self._reserve is not None:
                self._reserve(self.taken_bytes)

    def take(self, fill_bytes: int, what: str) -> None:
        """Counts elements that were not sent, before they are made.

        Raises:
            ResourceExhausted: The request's sum exceeds the limit.

        """
        self._fill_bytes += fill_bytes
        if self._fill_bytes > self._max_fill_bytes:
            raise ResourceExhausted(
                f"{what} takes {fill_bytes} bytes more than was sent; the limit for a "
                f"request is {self._max_fill_bytes} (--max_filled_bytes): send the "
                "values, or fewer at a time"
            )
        self.take_objects(fill_bytes, what)

    def take_objects(self, fill_bytes: int, what: str) -> None:
        """Counts the objects of what was sent, before they are made.

        Raises:
            ResourceExhausted: The request's sum exceeds the limit.

        """
        self.num_bytes += fill_bytes
        if self.num_bytes > self.limit_bytes:
            raise ResourceExhausted(
                f"{what} takes {fill_bytes} bytes more than was sent; the limit for a "
                f"request is {self.limit_bytes}: send the values, or fewer at a time"
            )
        self.widen(fill_bytes)
