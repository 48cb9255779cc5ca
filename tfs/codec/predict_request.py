"""Reads ``PredictRequest``: by a template if one like it was read before, or else by upb.

A template (tfs.codec.predict_template) takes a message apart without parsing or copying
it. Every other message is parsed by protobuf's own parser, which decides what is
accepted and what it means, and leaves a template behind if it can. A differential fuzz
test checks that the two agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from tfs.codec import wire
from tfs.codec.decode_options import (
    DEFAULT_OPTIONS,
    MAX_FIELDS,
    DecodeOptions,
    FillBudget,
)
from tfs.codec.model_spec import model_spec_of
from tfs.codec.predict_template import learn, read_as_before
from tfs.codec.predict_view import PredictRequestView
from tfs.codec.tensor import tensor_view_of
from tfs.core.errors import (
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unimplemented,
)
from tfs.core.tensor_view import Buffer
from tfs.proto.tensorflow_serving.apis import predict_pb2

_LEAST_TAG: Final = 1 << 3  # of field number 1; there is no field 0


def read_predict_request(
    message: Buffer,
    options: DecodeOptions = DEFAULT_OPTIONS,
    reserve: Callable[[int], None] | None = None,
) -> PredictRequestView:
    """Decodes a request, however long that takes. Thread-safe.

    Args:
        message: The request.
        options: Its limits.
        reserve: Is called before the request takes memory beyond its own bytes, with
            how much it takes in all; what it raises passes through.

    Raises:
        InvalidArgument: Not a PredictRequest; or ``tensor parsing error: NAME: ...``.
        ResourceExhausted: An input's shape claims more than ``max_fill_bytes`` of
            elements that were not sent; or they take more than ``max_tensor_bytes``
            beyond what was sent; or there are more than ``MAX_FIELDS`` fields, or twice
            as many dimensions and other fields in the inputs.
        Unimplemented: It belongs to a streamed prediction.

    """
    view = read_as_before(message)
    if view is None:
        view = parse(message, options.max_tensor_bytes, reserve, options.max_fill_bytes)
        learn(message, view)
    return view


def read_if_quick(
    message: Buffer, options: DecodeOptions = DEFAULT_OPTIONS
) -> PredictRequestView | None:
    """Decodes a request that takes no longer than about a millisecond. Thread-safe.

    Returns None for any other, which :func:`read_predict_request` decodes off the
    serving loop. The size of one that is like an earlier one does not matter, because
    raw elements are never touched.

    Raises:
        ServingError: As :func:`read_predict_request`.

    """
    view = read_as_before(message)
    if view is None:
        if len(message) > options.quick_bytes:
            return None
        view = _parse_if_quick(message, options)
        if view is not None:
            learn(message, view)
    return view


def parse(
    message: Buffer,
    max_tensor_bytes: int,
    reserve: Callable[[int], None] | None = None,
    max_fill_bytes: int = DEFAULT_OPTIONS.max_fill_bytes,
) -> PredictRequestView:
    """Reads any request through message objects, copying its tensors.

    It is the reference against which templates are tested, and raises the same as
    :func:`read_predict_request`.
    """
    if message and message[0] < _LEAST_TAG:
        # A bomb of compressed zeros unpacks to a long message that begins like this. It is
        # refused before it is copied.
        raise InvalidArgument("cannot parse the PredictRequest: field number 0")
    whole = bytes(message)
    budget = FillBudget(max_tensor_bytes, reserve, max_fill_bytes)
    if len(whole) > MAX_FIELDS:
        if wire.has_more_fields(whole, 0, len(whole), MAX_FIELDS):
            raise ResourceExhausted(
                f"a PredictRequest with more than {MAX_FIELDS} inputs, outputs and "
                "other fields"
            )
        num_widened = _count_widened_bytes(whole)
        if num_widened is None:
            raise ResourceExhausted(
                f"inputs with more than {_MAX_PARTS} dimensions, unpacked values and "
                f"other fields, or more than {_MAX_STRINGS} strings among them"
            )
        budget.widen(_LONGEST_ITEM_BYTES * num_widened)
    if len(whole) > _LARGE_BYTES:
        budget.widen(_COPIES * len(whole))
    try:
        request = predict_pb2.PredictRequest.FromString(whole)
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the PredictRequest: {error}") from error
    if request.predict_streamed_options.request_state:
        raise Unimplemented(
            "streamed prediction (predict_streamed_options) is not offered; send the "
            "whole request in one Predict"
        )
    inputs = {}
    for name in _names_in_order(whole, request.inputs):
        try:
            inputs[name] = tensor_view_of(request.inputs[name], budget)
        except ServingError as error:
            raise type(error)(
                f"tensor parsing error: {name}: {error.message}"
            ) from error
    return PredictRequestView(
        model_spec_of(request.model_spec) if request.HasField("model_spec") else None,
        inputs,
        tuple(request.output_filter),
        request.client_id if request.HasField("client_id") else None,
        budget.taken_bytes,
    )


_LARGE_BYTES: Final = 1 << 20
_COPIES: Final = 2  # once as objects and once as tensors

# Enough for a shape of a hundred thousand sizes to get an error of its own.
_MAX_PARTS: Final = 2 * MAX_FIELDS
_MAX_STRINGS: Final = 1 << 19
_MOST_ORDERED: Final = 64  # with more inputs, any may be the one that an error names
_MAX_QUICK_FIELDS: Final = 128
_REQUEST: Final = 0
_ENTRY: Final = 1  # of the map of inputs
_TENSOR: Final = 2
_SHAPE: Final = 3
_ANYTHING: Final = 4
_INNER: Final[dict[int, dict[int, int]]] = {
    _REQUEST: {2: _ENTRY},
    _ENTRY: {2: _TENSOR},
    _TENSOR: {2: _SHAPE, 14: _ANYTHING, 15: _ANYTHING},  # resources and variants
    _SHAPE: {},
    _ANYTHING: {},
}
_STRING_TAG: Final = 0x42
_INPUT_FIELD: Final = 2
_KEY_FIELD: Final = 1  # of a map's entry
_PACKED_VARINTS: Final = frozenset({7, 10, 11, 13, 16, 17})  # typed fields of tensors
_LONGEST_ITEM_BYTES: Final = 8


def _names_in_order(message: bytes, inputs: Mapping[str, object]) -> Iterable[str]:
    """Returns the names of the inputs in the order sent, which protobuf does not keep."""
    if not 1 < len(inputs) <= _MOST_ORDERED:
        return inputs
    names: dict[str, None] = {}
    for number, kind, start, stop in wire.fields(message, 0, len(message)):
        if (number, kind) == (_INPUT_FIELD, wire.DELIMITED):
            name = ""  # that of an entry without a key
            for number, kind, first, last in wire.fields(message, start, stop):
                if (number, kind) == (_KEY_FIELD, wire.DELIMITED):
                    name = str(message[first:last], "utf-8")
            names[name] = None
    return names


def _count_widened_bytes(message: bytes) -> int | None:
    """Returns how many bytes of a request's inputs the parser makes numbers of.

    Each of them may become one of eight bytes. Returns None if the inputs have more
    fields than may become objects: five million dimensions of two bytes each would
    become 700 MB, and two million values that are not packed take seconds. Counting ends
    where the message is malformed; the parser reports that.
    """
    num_widened = 0
    num_left, strings_left = _MAX_PARTS, _MAX_STRINGS
    spans = [(_REQUEST, 0, len(message))]
    while spans:
        what, start, stop = spans.pop()
        inner = _INNER[what]
        try:
            if what == _TENSOR:
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
                if what == _ANYTHING or number in inner:
                    spans.append((inner.get(number, _ANYTHING), first, last))
                if what == _TENSOR:
                    if number in _PACKED_VARINTS:
                        num_widened += last - first
                    spans.append((what, last, stop))  # strings may begin there
                    break
        except (wire.MalformedError, IndexError):
            continue
    return num_widened


def _skip_strings(message: bytes, index: int, stop: int, most: int) -> tuple[int, int]:
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


def _parse_if_quick(
    message: Buffer, options: DecodeOptions
) -> PredictRequestView | None:
    """Like :func:`parse`; returns None if it has, or fills in, too much for the loop."""
    if wire.has_more_fields(message, 0, len(message), _MAX_QUICK_FIELDS):
        return None
    if options.quick_fill_bytes >= options.max_fill_bytes:
        return parse(
            message, options.max_tensor_bytes, max_fill_bytes=options.max_fill_bytes
        )
    try:
        return parse(message, options.quick_fill_bytes)
    except ResourceExhausted:
        return None
