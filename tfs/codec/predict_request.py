"""Reads ``PredictRequest``: by a template if one like it was read before, or else by upb.

A template (tfs.codec.request_reader) takes a message apart without parsing or copying
it. Every other message is parsed by protobuf's own parser, which decides what is
accepted and what it means, and leaves a template behind if it can. A differential fuzz
test checks that the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from tfs.codec import wire
from tfs.codec.decode_options import FillBudget, MessageForm, parse_weighed
from tfs.codec.model_spec import ModelSpec, model_spec_of, write_model_spec
from tfs.codec.request_reader import Gap, RequestReader, RequestTemplates
from tfs.codec.tensor import BY_DTYPE, tensor_view_of, write_tensor
from tfs.core.dtype import BOOL, STRING
from tfs.core.errors import ServingError, Unimplemented
from tfs.core.tensor_view import Buffer, TensorView
from tfs.proto.tensorflow_serving.apis import predict_pb2


@dataclass(slots=True)
class PredictRequestView:
    """A decoded ``PredictRequest``. Its tensors may borrow the message. Never changed.

    Attributes:
        model_spec: Which model; None if the request has none. Equal specs are often
            the same object, so it may be looked up by identity.
        inputs: Tensors by name, in the order sent.
        output_filter: Names of the wanted outputs, as sent; empty for all.
        client_id: The caller's name for itself; None if it sent none.
        filled_bytes: How much its tensors take beyond what was sent.

    """

    model_spec: ModelSpec | None
    inputs: dict[str, TensorView]
    output_filter: tuple[str, ...] = ()
    client_id: bytes | None = None
    filled_bytes: int = field(default=0, compare=False, repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether it holds a model and tensors, and nothing else."""
        return (
            self.model_spec is not None
            and not self.output_filter
            and self.client_id is None
        )

    def renewed(
        self, inputs: dict[str, TensorView], text: bytes | None
    ) -> PredictRequestView:
        """Returns the same request with other tensors and another ``client_id``."""
        return PredictRequestView(self.model_spec, inputs, self.output_filter, text)


_MAX_GAPS: Final = 16
_MAX_TENSOR_FIELDS: Final = 64

_MODEL_SPEC_FIELD: Final = 1
_INPUT_FIELD: Final = 2
_OUTPUT_FILTER_FIELD: Final = 3
_CLIENT_ID_FIELD: Final = 6
_CONTENT_FIELD: Final = 4  # of a tensor
_ENTRY_FIELDS: Final = [
    (1, wire.DELIMITED),
    (2, wire.DELIMITED),
]  # of the map of inputs


def _find_gaps(message: Buffer, view: PredictRequestView) -> list[Gap]:
    """Returns where the elements of all tensors are, and the ``client_id``, in order.

    Returns none if something cannot be left out: if the elements of a tensor are not
    raw, were not all sent, or were sent more than once.
    """
    if not 0 < len(view.inputs) <= _MAX_GAPS or any(
        each.dtype is BOOL or each.dtype is STRING for each in view.inputs.values()
    ):
        return []
    gaps: list[Gap] = []
    names: set[str | None] = set()  # None stands for the client_id
    for number, kind, start, stop in wire.fields(message, 0, len(message)):
        name: str | None = None
        gap: Gap | None = (start, stop, "", None, ())
        if kind != wire.DELIMITED or len(gaps) > _MAX_GAPS:
            return []
        if number in (_MODEL_SPEC_FIELD, _OUTPUT_FILTER_FIELD):
            continue
        if number == _INPUT_FIELD:
            entry = list(wire.fields(message, start, stop))
            if [each[:2] for each in entry] != _ENTRY_FIELDS:
                return []
            name = str(memoryview(message)[slice(*entry[0][2:])], "utf-8")
            gap = _find_elements(message, *entry[1][2:], name, view.inputs[name])
        elif number != _CLIENT_ID_FIELD:
            return []
        if gap is None or name in names:
            return []
        names.add(name)
        gaps.append(gap)
    return gaps


def _find_elements(
    message: Buffer, start: int, stop: int, name: str, view: TensorView
) -> Gap | None:
    """Returns where a TensorProto has a view's elements; None if not at one place."""
    kind = BY_DTYPE[view.dtype]
    payloads: dict[int, list[tuple[int, int]]] = {_CONTENT_FIELD: []}
    if kind.is_raw:
        payloads[kind.field_number] = []
    fields = islice(wire.fields(message, start, stop), _MAX_TENSOR_FIELDS + 1)
    for index, (number, wire_kind, first, last) in enumerate(fields):
        if index == _MAX_TENSOR_FIELDS:
            return None
        if number in payloads:
            if wire_kind != wire.DELIMITED or payloads[number]:
                return None
            payloads[number].append((first, last))
    # An empty content counts as none.
    places = [place for place in payloads[_CONTENT_FIELD] if place[0] != place[1]]
    places = places or payloads.get(kind.field_number, [])
    if not places:
        return None
    first, last = places[0]
    # Compared as bytes: views are compared one byte at a time.
    if first == last or bytes(memoryview(message)[first:last]) != view.data:
        return None
    return first, last, name, view.dtype, view.shape


KNOWN: Final = RequestTemplates[PredictRequestView](_find_gaps)
"""The PredictRequests that were read before."""


def parse(message: Buffer, budget: FillBudget) -> PredictRequestView:
    """Reads any request through message objects, copying its tensors.

    It is the reference against which templates are tested, and raises as
    :meth:`RequestReader.read`; Unimplemented for a streamed prediction.
    """
    request = parse_weighed(message, _FORM, predict_pb2.PredictRequest, budget)
    if request.predict_streamed_options.request_state:
        raise Unimplemented(
            "streamed prediction (predict_streamed_options) is not offered; send the "
            "whole request in one Predict"
        )
    inputs = {}
    for name in _names_in_order(message, request.inputs):
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
_KEY_FIELD: Final = 1  # of a map's entry


def _names_in_order(message: Buffer, inputs: Mapping[str, object]) -> Iterable[str]:
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


def write_predict_request(
    spec: ModelSpec, inputs: Mapping[str, TensorView], output_filter: Sequence[str] = ()
) -> bytes:
    """Returns the serialized request. Thread-safe."""
    fields = [wire.delimited(1, write_model_spec(spec))]
    for name, view in inputs.items():
        tensor = write_tensor(view, as_tensor_content=True)
        entry = wire.delimited(1, name.encode()) + wire.delimited(2, tensor)
        fields.append(wire.delimited(2, entry))
    fields += [wire.delimited(3, name.encode()) for name in output_filter]
    return b"".join(fields)
