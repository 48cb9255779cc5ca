"""How much a message may make the server allocate, and what it would, weighed unparsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from tfs.codec import wire
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.tensor_view import Buffer

M = TypeVar("M", bound=Message)

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
            limit = f"{self._max_fill_bytes} (--max_filled_bytes)"
            raise _too_much(what, fill_bytes, limit)
        self.take_objects(fill_bytes, what)

    def take_objects(self, fill_bytes: int, what: str) -> None:
        """Counts the objects of what was sent, before they are made.

        Raises:
            ResourceExhausted: The request's sum exceeds the limit.

        """
        self.num_bytes += fill_bytes
        if self.num_bytes > self.limit_bytes:
            raise _too_much(what, fill_bytes, str(self.limit_bytes))
        self.widen(fill_bytes)


def _too_much(what: str, fill_bytes: int, limit: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"{what} takes {fill_bytes} bytes more than was sent; the limit for a request is "
        f"{limit}: send the values, or fewer at a time"
    )


_LARGE_BYTES: Final = 1 << 20
_COPIES: Final = 2  # once as objects and once as tensors

# Enough for a shape of a hundred thousand sizes to get an error of its own.
_MAX_PARTS: Final = 2 * MAX_FIELDS
_MAX_STRINGS: Final = 1 << 19
_STRING_TAG: Final = 0x42  # of repeated strings in both kinds of tensor
_LONGEST_ITEM_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How the messages of a request nest. Immutable.

    Attributes:
        name: Of the request, for errors.
        inner: For each kind of message, from 0 on for the request, the kinds of its
            fields by their numbers; a kind without an entry is all that nests.
        tensor: The kind with the values of a tensor.
        packed_varints: Numbers of its fields whose bytes become numbers.

    """

    name: str
    inner: Mapping[int, Mapping[int, int]]
    tensor: int
    packed_varints: frozenset[int]


_LEAST_TAG: Final = 1 << 3  # of field number 1; there is no field 0


def parse_weighed(
    message: Buffer, form: MessageForm, kind: type[M], budget: FillBudget
) -> M:
    """Returns a request as a message object, once the budget has what parsing it takes.

    Raises:
        InvalidArgument: It is no such request.
        ResourceExhausted: It has too many fields, dimensions or strings.

    """
    if message and message[0] < _LEAST_TAG:
        # A bomb of compressed zeros unpacks to a long message that begins like this. It is
        # refused before it is copied.
        raise InvalidArgument(f"cannot parse the {form.name}: field number 0")
    whole = bytes(message)
    _weigh(whole, form, budget)
    try:
        return kind.FromString(whole)
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the {form.name}: {error}") from error


def _weigh(message: bytes, form: MessageForm, budget: FillBudget) -> None:
    if len(message) > MAX_FIELDS:
        if wire.has_more_fields(message, 0, len(message), MAX_FIELDS):
            raise ResourceExhausted(
                f"a {form.name} with more than {MAX_FIELDS} inputs, outputs and "
                "other fields"
            )
        num_widened = _count_widened_bytes(message, form)
        if num_widened is None:
            raise ResourceExhausted(
                f"inputs with more than {_MAX_PARTS} dimensions, unpacked values and "
                f"other fields, or more than {_MAX_STRINGS} strings among them"
            )
        budget.widen(_LONGEST_ITEM_BYTES * num_widened)
    if len(message) > _LARGE_BYTES:
        budget.widen(_COPIES * len(message))


def _count_widened_bytes(message: Buffer, form: MessageForm) -> int | None:
    """Returns how many bytes of a request's inputs the parser makes numbers of.

    Each of them may become one of eight bytes. Returns None if the inputs have more
    fields than may become objects: five million dimensions of two bytes each would
    become 700 MB, and two million values that are not packed take seconds. Counting ends
    where the message is malformed; the parser reports that.
    """
    num_widened = 0
    num_left, strings_left = _MAX_PARTS, _MAX_STRINGS
    anything = len(form.inner)
    spans = [(0, 0, len(message))]
    while spans:
        what, start, stop = spans.pop()
        inner = form.inner.get(what, {})
        try:
            if what == form.tensor:
                num, start = _skip_strings(message, start, stop, strings_left)
                strings_left -= num
                if strings_left < 0:
                    return None
            for number, kind, first, last in wire.fields(message, start, stop):
                num_left -= 1
                if num_left < 0:
                    return None
                if kind != wire.DELIMITED:
                    continue
                if what == anything or number in inner:
                    spans.append((inner.get(number, anything), first, last))
                if what == form.tensor:
                    if number in form.packed_varints:
                        num_widened += last - first
                    spans.append((what, last, stop))  # strings may begin there
                    break
        except (wire.MalformedError, IndexError):
            continue
    return num_widened


def _skip_strings(message: Buffer, index: int, stop: int, most: int) -> tuple[int, int]:
    """Returns how many strings follow each other, at most one more than ``most``.

    The second number is the index behind them.
    """
    num = 0
    while index < stop and message[index] == _STRING_TAG and num <= most:
        size = message[index + 1]
        index += 2
        if size >= 0x80:
            size, index = wire.read_size(message, index - 1)
        index += size
        num += 1
    return num, index
