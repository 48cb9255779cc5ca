"""``Input``: the tf.Example rows of Classify, Regress and MultiInference, unparsed.

The signature decides which tensors the Examples become, and it is known only after the
model is resolved. So a request is split into Examples without parsing them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tfs.codec import wire
from tfs.codec.decode_options import DEFAULT_OPTIONS
from tfs.codec.model_spec import ModelSpec, merged_model_spec, read_model_spec
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.tensor_view import Buffer

QUICK_EXAMPLE_BYTES: Final = 8 << 10
"""Requests with Examples up to this long take about a millisecond at most to decode,
unless the signature's defaults are large."""


@dataclass(frozen=True, slots=True)
class ExampleInput:
    """A ``tensorflow.serving.Input``, its Examples still serialized. Immutable.

    Attributes:
        examples: One per row; may be malformed.
        context: Features common to all; empty for none.

    """

    examples: tuple[bytes, ...]
    context: bytes = b""


@dataclass(frozen=True, slots=True)
class ExampleRequest:
    """A ``ClassificationRequest`` or ``RegressionRequest``. Immutable.

    Attributes:
        model_spec: Which model; None if the request has none.
        input: The rows; empty if the request has none.

    """

    model_spec: ModelSpec | None
    input: ExampleInput


def read_example_request(message: Buffer) -> ExampleRequest:
    """Reads a Classify or Regress request (they have the same fields). Thread-safe.

    Raises:
        InvalidArgument: Not such a request. Malformed Examples are found later.

    """
    specs, parts = read_fields(message)
    spec: ModelSpec | None = None
    if specs:
        spec = (
            read_model_spec(specs[0]) if len(specs) == 1 else merged_model_spec(specs)
        )
    return ExampleRequest(spec, read_input(parts))


def read_fields(message: Buffer) -> tuple[list[bytes], list[bytes]]:
    """Returns the contents of fields 1 and 2, each time they occur.

    Raises:
        InvalidArgument: Not a protobuf message.

    """
    first: list[bytes] = []
    second: list[bytes] = []
    whole = memoryview(message)
    try:
        for number, kind, start, stop in wire.fields(message, 0, len(message)):
            if kind == wire.DELIMITED and number in (1, 2):
                (first, second)[number - 1].append(bytes(whole[start:stop]))
    except wire.MalformedError as error:
        raise InvalidArgument(f"cannot parse the request: {error}") from error
    return first, second


_EXAMPLE_BYTES: Final = 64  # what one takes in memory at least
# Members of Input's oneof, and the fields of both.
_LIST: Final = 1
_LIST_WITH_CONTEXT: Final = 2
_EXAMPLE: Final = 1
_CONTEXT: Final = 2


def read_input(parts: Iterable[bytes]) -> ExampleInput:
    """Reads an Input that came in parts, by protobuf's rules for merging them.

    Raises:
        InvalidArgument: Not an Input. The Examples themselves are not looked at.
        ResourceExhausted: There are so many tiny Examples that splitting them takes
            more than ``max_tensor_bytes`` beyond what was sent.

    """
    form = 0
    examples: list[bytes] = []
    context = b""
    room_bytes = DEFAULT_OPTIONS.max_tensor_bytes
    try:
        for part in parts:
            for number, kind, start, stop in wire.fields(part, 0, len(part)):
                if kind != wire.DELIMITED or number not in (_LIST, _LIST_WITH_CONTEXT):
                    continue
                if number != form:  # the last member of a oneof counts
                    form, examples, context = number, [], b""
                has_context = form == _LIST_WITH_CONTEXT
                more, room_bytes = _read_list(
                    part, start, stop, has_context, examples, room_bytes
                )
                context = _merged(context, more)
    except wire.MalformedError as error:
        raise InvalidArgument(f"cannot parse the request's input: {error}") from error
    return ExampleInput(tuple(examples), context)


def _read_list(
    part: bytes,
    start: int,
    stop: int,
    has_context: bool,
    examples: list[bytes],
    room_bytes: int,
) -> tuple[bytes, int]:
    """Adds a list's Examples to ``examples``; returns its context and the room left.

    Raises:
        MalformedError: Not such a list.
        ResourceExhausted: The Examples take more room than there is.

    """
    context = b""
    for number, kind, low, high in wire.fields(part, start, stop):
        if kind != wire.DELIMITED:
            continue
        if number == _EXAMPLE:
            examples.append(part[low:high])
            room_bytes -= max(0, _EXAMPLE_BYTES - (high - low))
            if room_bytes < 0:
                raise ResourceExhausted(
                    f"more than {len(examples) - 1} Examples of next to nothing; send "
                    "them in several requests"
                )
        elif has_context and number == _CONTEXT:
            context = _merged(context, part[low:high])
    return context, room_bytes


def _merged(context: bytes, more: bytes) -> bytes:
    """Returns both parts of a context as one.

    Raises:
        MalformedError: One of them is cut off; the other must not complete it.

    """
    if context and more:
        for part in (context, more):
            for _ in wire.fields(part, 0, len(part)):
                pass
    return context + more
