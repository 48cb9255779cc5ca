"""Finds where the elements of a PredictRequest are, so that others like it need no parsing."""

from __future__ import annotations

from itertools import islice
from typing import Final

from tfs.codec import wire
from tfs.codec.predict_view import PredictRequestView
from tfs.codec.request_template import Gap, RequestTemplates
from tfs.codec.wire_type import BY_DTYPE
from tfs.core.dtype import BOOL, STRING
from tfs.core.tensor_view import Buffer, TensorView

_MAX_GAPS: Final = 16
_MAX_TENSOR_FIELDS: Final = 64

_MODEL_SPEC_FIELD: Final = 1
_INPUT_FIELD: Final = 2
_OUTPUT_FILTER_FIELD: Final = 3
_CLIENT_ID_FIELD: Final = 6
_CONTENT_FIELD: Final = 4  # of a tensor
_ENTRY: Final = [(1, wire.DELIMITED), (2, wire.DELIMITED)]  # of the map of inputs


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
            if [each[:2] for each in entry] != _ENTRY:
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
