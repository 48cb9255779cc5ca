"""ModelInferRequest and ModelInferResponse, the messages of the Open Inference Protocol.

A request is read by a template if one like it was read before, or else by upb. A response
is a remembered head and the elements behind it: raw contents come last, so all before
them depends on names, dtypes and shapes alone, which recur.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from tfs.codec import wire
from tfs.codec.decode_options import FillBudget, MessageForm, parse_weighed
from tfs.codec.model_spec import ModelSpec
from tfs.codec.oip.datatype import datatype_of, dtype_of, raw_contents, read_raw
from tfs.codec.oip.infer_view import (
    BINARY,
    BINARY_SIZE,
    InferRequestView,
    check_parameters,
    read_settings,
    read_version,
)
from tfs.codec.predict_response import Reply, cut_replies
from tfs.codec.request_reader import Gap, RequestReader, RequestTemplates
from tfs.codec.tensor import QUICK_VALUES, check_empty, check_strings, count_elements
from tfs.core import dtype as dtypes
from tfs.core.dtype import BOOL, STRING, DType
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.tensor_view import LARGE_BYTES, Buffer, TensorView
from tfs.proto.inference import open_inference_grpc_pb2 as pb

CONTENTS: Final[dict[DType, tuple[str, str]]] = {
    dtypes.BOOL: ("bool_contents", "?"),
    dtypes.INT8: ("int_contents", "b"),
    dtypes.INT16: ("int_contents", "h"),
    dtypes.INT32: ("int_contents", "i"),
    dtypes.INT64: ("int64_contents", "q"),
    dtypes.UINT8: ("uint_contents", "B"),
    dtypes.UINT16: ("uint_contents", "H"),
    dtypes.UINT32: ("uint_contents", "I"),
    dtypes.UINT64: ("uint64_contents", "Q"),
    dtypes.FLOAT32: ("fp32_contents", "f"),
    dtypes.FLOAT64: ("fp64_contents", "d"),
    dtypes.STRING: ("bytes_contents", ""),
}
"""The typed field of each element type, and its code in ``struct``."""

_INPUT, _CONTENTS, _OTHER, _ENTRY = 1, 2, 3, 4
_FORM: Final = MessageForm(
    "ModelInferRequest",
    {
        0: {4: _ENTRY, 5: _INPUT, 6: _OTHER},
        _INPUT: {3: _OTHER, 4: _ENTRY, 5: _CONTENTS},
        _CONTENTS: {},
        _OTHER: {2: _ENTRY},
        _ENTRY: {},
    },
    _CONTENTS,
    frozenset({1, 2, 3, 4, 5}),
)
_ID_FIELD: Final = 3
_INPUT_FIELD: Final = 5
_RAW_FIELD: Final = 7
_PORTION: Final = 16_384
_MAX_GAPS: Final = 16


def parse(message: Buffer, budget: FillBudget) -> InferRequestView:
    """Reads any request through message objects, copying its tensors.

    Raises:
        ServingError: As :meth:`RequestReader.read`.

    """
    request = parse_weighed(message, _FORM, pb.ModelInferRequest, budget)
    settings = read_settings(_parameters(request.parameters))
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidArgument(
            f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs"
        )
    inputs: dict[str, TensorView] = {}
    for index, proto in enumerate(request.inputs):
        name = proto.name
        if name in inputs:
            raise InvalidArgument(f"input {name!r} comes twice")
        try:
            inputs[name] = _view_of(proto, raw[index] if raw else None, budget)
        except ServingError as error:
            raise type(error)(
                f"tensor parsing error: {name}: {error.message}"
            ) from error
    wanted = tuple([output.name for output in request.outputs])
    seen: set[str] = set()
    for output in request.outputs:
        check_parameters("output", output.name, output.parameters, BINARY)
        if output.name in seen:
            raise InvalidArgument(f"output {output.name!r} comes twice")
        seen.add(output.name)
    spec = ModelSpec(
        request.model_name,
        read_version(request.model_version),
        None,
        settings.signature_name,
    )
    return InferRequestView(
        spec,
        inputs,
        wanted,
        request.id.encode(),
        settings,
        is_raw=bool(raw),
        filled_bytes=budget.taken_bytes,
    )


def _parameters(parameters: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [
        (name, getattr(value, value.WhichOneof("parameter_choice") or "", None))
        for name, value in parameters.items()
    ]


def _view_of(
    proto: pb.ModelInferRequest.InferInputTensor, raw: bytes | None, budget: FillBudget
) -> TensorView:
    check_parameters("input", proto.name, proto.parameters, BINARY_SIZE)
    dtype, shape = dtype_of(proto.datatype), tuple(proto.shape)
    if raw is not None:
        if proto.HasField("contents"):
            raise InvalidArgument("it has contents beside raw_input_contents")
        return read_raw(dtype, shape, raw, budget)
    num_elements = count_elements(shape)
    if not num_elements:
        check_empty(dtype, shape, budget)
    field, code = CONTENTS.get(dtype, ("", ""))
    if not field:
        raise InvalidArgument(f"{proto.datatype} travels in raw_input_contents alone")
    values = getattr(proto.contents, field)
    if len(values) != num_elements:
        raise InvalidArgument(
            f"{len(values)} {field}; {proto.datatype} {list(shape)} takes {num_elements}"
        )
    if dtype is STRING:
        check_strings(num_elements, proto.ByteSize(), budget)
        return TensorView(STRING, shape, tuple(values))
    budget.widen(num_elements * (dtype.item_bytes - 1))
    return TensorView(dtype, shape, _packed(proto.datatype, code, values))


def _packed(datatype: str, code: str, values: Any) -> bytes:
    """Returns numbers as elements; in portions, between which other threads get a turn."""
    try:
        return b"".join(
            [
                struct.pack(f"<{len(part)}{code}", *part)
                for part in (
                    values[start : start + _PORTION]
                    for start in range(0, len(values), _PORTION)
                )
            ]
        )
    except struct.error:
        raise InvalidArgument(f"a value is out of the range of {datatype}") from None


def _find_gaps(message: Buffer, view: InferRequestView) -> list[Gap]:
    """Returns where the raw contents are, and the id, in order; none if they are typed."""
    if not (view.is_raw and 0 < len(view.inputs) <= _MAX_GAPS) or any(
        not each.data or each.dtype is BOOL or each.dtype is STRING
        for each in view.inputs.values()
    ):
        return []
    left = iter(view.inputs.items())
    gaps: list[Gap] = []
    num_ids = 0
    for number, kind, start, stop in wire.fields(message, 0, len(message)):
        if kind != wire.DELIMITED or num_ids > 1:
            return []
        if number == _RAW_FIELD:
            name, each = next(left)
            gaps.append((start, stop, name, each.dtype, each.shape))
        elif number == _ID_FIELD:
            num_ids += 1
            if start != stop:
                gaps.append((start, stop, "", None, ()))
    return gaps


KNOWN: Final = RequestTemplates[InferRequestView](_find_gaps)
"""The requests that were read before."""

READER: Final = RequestReader(KNOWN, parse)


_Key = tuple[tuple[str, DType, tuple[int, ...]], ...]

_RAW_TAG: Final = wire.tag(6, wire.DELIMITED)
_QUICK_BYTES: Final = 1 << 18  # of strings


def write_raw(
    model: str, version: int, outputs: Mapping[str, TensorView], request_id: bytes = b""
) -> Reply:
    """Returns a reply with raw contents, in parts if it is large. Thread-safe.

    Raises:
        Unimplemented: The protocol has no datatype for an output.

    """
    key = tuple([(name, view.dtype, view.shape) for name, view in outputs.items()])
    head = _head(model, version, key)
    if request_id:
        head = wire.delimited(3, request_id) + head  # fields have no order
    parts: list[bytes | memoryview] = [head]
    is_large = False
    for view in outputs.values():
        contents = raw_contents(view)
        parts += (_RAW_TAG + wire.varint(len(contents)), contents)
        is_large = is_large or len(contents) >= LARGE_BYTES
    return tuple(parts) if is_large else b"".join(parts)


def write_raw_replies(
    model: str,
    version: int,
    outputs: Mapping[str, TensorView],
    num_rows: int,
    num_replies: int,
) -> list[bytes] | None:
    """Returns the replies to plain requests that were computed together. Thread-safe.

    None if that takes more than copying elements: for strings and large replies.

    Args:
        model: The model that answered.
        version: Its version.
        outputs: Tensors with at least ``num_rows * num_replies`` rows.
        num_rows: Rows of each reply.
        num_replies: How many replies.

    """
    key = tuple(
        [
            (name, view.dtype, (num_rows, *view.shape[1:]))
            for name, view in outputs.items()
        ]
    )
    head = _head(model, version, key)
    fields: list[tuple[bytes, Buffer, int]] = []
    for view in outputs.values():
        data = view.data
        if isinstance(data, tuple):
            return None
        size = len(data) // view.shape[0] * num_rows
        if not size or size >= LARGE_BYTES:
            return None
        fields.append((_RAW_TAG + wire.varint(size), data, size))
    return cut_replies(head, fields, b"", num_replies)


def write_typed(
    model: str, version: int, outputs: Mapping[str, TensorView], request_id: bytes = b""
) -> Reply:
    """Returns a reply with typed contents; raw ones if a datatype has no typed field.

    Takes 0.1 us for each element. Thread-safe.

    Raises:
        Unimplemented: The protocol has no datatype for an output.

    """
    if any(view.dtype not in CONTENTS for view in outputs.values()):
        return write_raw(model, version, outputs, request_id)
    response = pb.ModelInferResponse(
        model_name=model, model_version=str(version), id=request_id.decode()
    )
    for name, view in outputs.items():
        proto = response.outputs.add(
            name=name, datatype=datatype_of(name, view.dtype), shape=view.shape
        )
        field, code = CONTENTS[view.dtype]
        values: Sequence[object] = (
            view.strings if view.dtype is STRING else _numbers(view, code)
        )
        getattr(proto.contents, field).extend(values)
    return response.SerializeToString()


def _numbers(view: TensorView, code: str) -> Sequence[object]:
    # Little-endian as this machine's, which is x86-64 or ARM.
    return memoryview(view.buffer).cast(code)  # type: ignore[call-overload, no-any-return]


def is_quickly_written(outputs: Mapping[str, TensorView], *, is_raw: bool) -> bool:
    """Tells whether a reply is written quickly enough for the serving loop."""
    for view in outputs.values():
        if view.dtype is STRING:
            strings = view.strings
            if len(strings) > QUICK_VALUES or sum(map(len, strings)) > _QUICK_BYTES:
                return False
        elif not is_raw and view.num_elements > QUICK_VALUES:
            return False
    return True


@lru_cache(2048)
def _head(model: str, version: int, key: _Key) -> bytes:
    """Returns everything before the raw contents."""
    parts = [
        wire.delimited(1, model.encode()),
        wire.delimited(2, str(version).encode()),
    ]
    for name, dtype, shape in key:
        tensor = wire.delimited(1, name.encode()) + wire.delimited(
            2, datatype_of(name, dtype).encode()
        )
        if shape:
            tensor += wire.delimited(3, b"".join(map(wire.varint, shape)))
        parts.append(wire.delimited(5, tensor))
    return b"".join(parts)
