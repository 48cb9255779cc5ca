"""Weighs a request before it is parsed, so that no message becomes far more than was sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tfs.codec import wire
from tfs.codec.decode_options import MAX_FIELDS, FillBudget
from tfs.core.errors import ResourceExhausted
from tfs.core.tensor_view import Buffer

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


def weigh(message: bytes, form: MessageForm, budget: FillBudget) -> None:
    """Counts in the budget what parsing a request takes.

    Raises:
        ResourceExhausted: It has too many fields, dimensions or strings.

    """
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
