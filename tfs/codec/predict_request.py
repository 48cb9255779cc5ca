"""Reads ``PredictRequest`` without message objects and without copying tensors.

There are three ways, each of which leaves what it does not know to the next:

1. **Templates** (tfs.codec.predict_template): a message like one read before.
2. **The scan** (tfs.codec.predict_scan): what serializers normally write.
3. **upb**, here: anything unusual, such as repeated or unknown fields, and anything
   malformed. So protobuf decides what is accepted and what it means; a differential fuzz
   test checks that the first two agree with it.
"""

from __future__ import annotations

from collections.abc import Callable
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
from tfs.codec.portions import read_strings
from tfs.codec.predict_scan import SlowError, scan
from tfs.codec.predict_template import read_as_before
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
        view = scan(message, options, quick=False, reserve=reserve)
        if view is None:
            view = parse(
                message, options.max_tensor_bytes, reserve, options.max_fill_bytes
            )
    return view


def read_if_quick(
    message: Buffer, options: DecodeOptions = DEFAULT_OPTIONS
) -> PredictRequestView | None:
    """Decodes a request that takes no longer than about a millisecond. Thread-safe.

    Returns None for any other, which :func:`read_predict_request` decodes off the
    serving loop. Size alone does not matter, because raw elements are never touched.

    Raises:
        ServingError: As :func:`read_predict_request`.

    """
    view = read_as_before(message)
    if view is None:
        try:
            view = scan(message, options, quick=True)
        except SlowError:
            return None
        if view is None and len(message) <= options.quick_bytes:
            view = _parse_if_quick(message, options)
    return view


def parse(
    message: Buffer,
    max_tensor_bytes: int,
    reserve: Callable[[int], None] | None = None,
    max_fill_bytes: int = DEFAULT_OPTIONS.max_fill_bytes,
) -> PredictRequestView:
    """Reads any request through message objects, copying its tensors.

    It is the reference against which the faster ways are tested, and raises the same as
    :func:`read_predict_request`.
    """
    if message and message[0] < _LEAST_TAG:
        # A bomb of compressed zeros unpacks to a long message that begins like this. It is
        # refused before it is copied.
        raise InvalidArgument("cannot parse the PredictRequest: field number 0")
    if len(message) > MAX_FIELDS:
        if wire.has_more_fields(message, 0, len(message), MAX_FIELDS):
            raise ResourceExhausted(
                f"a PredictRequest with more than {MAX_FIELDS} inputs, outputs and "
                "other fields"
            )
        if _has_too_many_parts(message):
            raise ResourceExhausted(
                f"inputs with more than {_MAX_PARTS} dimensions, unpacked values and "
                f"other fields, or more than {_MAX_STRINGS} strings among them"
            )
    budget = FillBudget(max_tensor_bytes, reserve, max_fill_bytes)
    if len(message) > _LARGE_BYTES:
        budget.widen(_COPIES * len(message))
    try:
        request = predict_pb2.PredictRequest.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the PredictRequest: {error}") from error
    if request.predict_streamed_options.request_state:
        raise Unimplemented(
            "streamed prediction (predict_streamed_options) is not offered; send the "
            "whole request in one Predict"
        )
    inputs = {}
    for name, tensor in request.inputs.items():
        try:
            inputs[name] = tensor_view_of(tensor, budget)
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


def _has_too_many_parts(message: Buffer) -> bool:
    """Tells whether a request's inputs have more fields than may become objects.

    Five million dimensions of two bytes each would become 700 MB of objects, and two
    million values that are not packed take seconds. Strings are skipped many at a time.
    Counting ends where the message is malformed; the parser reports that.
    """
    num_left, strings_left = _MAX_PARTS, _MAX_STRINGS
    spans = [(_REQUEST, 0, len(message))]
    while spans:
        what, start, stop = spans.pop()
        inner = _INNER[what]
        try:
            if what == _TENSOR and start < stop and message[start] == _STRING_TAG:
                _, num, behind = read_strings(
                    message, start, stop, _STRING_TAG, 0, strings_left
                )
                strings_left -= num
                if strings_left < 0:
                    return True
                spans.append((what, behind, stop))
                continue
            for number, kind, first, last in wire.fields(message, start, stop):
                num_left -= 1
                if num_left < 0:
                    return True
                if kind != wire.DELIMITED:
                    continue
                if what == _ANYTHING or number in inner:
                    spans.append((inner.get(number, _ANYTHING), first, last))
                if what == _TENSOR:
                    spans.append((what, last, stop))  # strings may begin there
                    break
        except (wire.MalformedError, IndexError):
            continue
    return False


def _parse_if_quick(
    message: Buffer, options: DecodeOptions
) -> PredictRequestView | None:
    """Like :func:`parse`; returns None if it would fill in too much for the serving loop."""
    if options.quick_fill_bytes >= options.max_fill_bytes:
        return parse(
            message, options.max_tensor_bytes, max_fill_bytes=options.max_fill_bytes
        )
    try:
        return parse(message, options.quick_fill_bytes)
    except ResourceExhausted:
        return None
