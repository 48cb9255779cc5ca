"""Reads ``PredictRequest``: by a template if one like it was read before, or else by upb.

A template (tfs.codec.predict_template) takes a message apart without parsing or copying
it. Every other message is parsed by protobuf's own parser, which decides what is
accepted and what it means, and leaves a template behind if it can. A differential fuzz
test checks that the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from tfs.codec import wire
from tfs.codec.decode_options import FillBudget
from tfs.codec.message_weight import MessageForm, weigh
from tfs.codec.model_spec import model_spec_of
from tfs.codec.predict_template import KNOWN
from tfs.codec.predict_view import PredictRequestView
from tfs.codec.request_reader import RequestReader
from tfs.codec.tensor import tensor_view_of
from tfs.core.errors import InvalidArgument, ServingError, Unimplemented
from tfs.core.tensor_view import Buffer
from tfs.proto.tensorflow_serving.apis import predict_pb2

_LEAST_TAG: Final = 1 << 3  # of field number 1; there is no field 0


def parse(message: Buffer, budget: FillBudget) -> PredictRequestView:
    """Reads any request through message objects, copying its tensors.

    It is the reference against which templates are tested, and raises as
    :meth:`RequestReader.read`; Unimplemented for a streamed prediction.
    """
    if message and message[0] < _LEAST_TAG:
        # A bomb of compressed zeros unpacks to a long message that begins like this. It is
        # refused before it is copied.
        raise InvalidArgument("cannot parse the PredictRequest: field number 0")
    whole = bytes(message)
    weigh(whole, _FORM, budget)
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


_MOST_ORDERED: Final = 64  # with more inputs, any may be the one that an error names
_ENTRY, _TENSOR, _SHAPE, _ANYTHING = 1, 2, 3, 4
_FORM: Final = MessageForm(
    "PredictRequest",
    {
        0: {2: _ENTRY},  # of the map of inputs
        _ENTRY: {2: _TENSOR},
        _TENSOR: {2: _SHAPE, 14: _ANYTHING, 15: _ANYTHING},  # resources and variants
        _SHAPE: {},
    },
    _TENSOR,
    frozenset({7, 10, 11, 13, 16, 17}),
)
_INPUT_FIELD: Final = 2
_KEY_FIELD: Final = 1  # of a map's entry


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


READER: Final = RequestReader(KNOWN, parse)
read_predict_request: Final = READER.read
read_if_quick: Final = READER.read_if_quick
