"""ModelInferRequest and ModelInferResponse, the messages of the Open Inference Protocol.

A request is read by a template if one like it was read before, or else by upb. A response
is a remembered head and the elements behind it: raw contents come last, so all before
them depends on names, dtypes and shapes alone, which recur.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tfs.codec import wire
from tfs.codec.decode_options import FillBudget, MessageForm, parse_weighed
from tfs.codec.model_spec import ModelSpec
from tfs.codec.oip.datatype import datatype_of, dtype_of, raw_contents, read_raw
from tfs.codec.oip.infer_view import (
    InferRequestView,
    read_inputs,
    read_outputs,
    read_settings,
    read_version,
)
from tfs.codec.predict_response import Answerer, Reply, cut_replies
from tfs.codec.request_reader import Gap, RequestReader, RequestTemplates
from tfs.codec.tensor import (
    check_empty,
    check_strings,
    count_elements,
    is_quickly_written,
)
from tfs.core import dtype as dtypes
from tfs.core.dtype import BOOL, STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.core.servable import Tensors
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
    inputs = read_inputs(
        [
            (proto.name, proto.parameters, (proto, raw[index] if raw else None))
            for index, proto in enumerate(request.inputs)
        ],
        lambda input_: _view_of(*input_, budget),
    )
    outputs = read_outputs(
        [(each.name, _parameters(each.parameters)) for each in request.outputs]
    )
    spec = ModelSpec(
        request.model_name,
        read_version(request.model_version),
        None,
        settings.signature_name,
    )
    return InferRequestView(
        spec,
        inputs,
        tuple(outputs),
        request.id.encode(),
        settings,
        is_raw=bool(raw),
        filled_bytes=budget.taken_bytes,
    )


def _parameters(parameters: Mapping[str, Any]) -> dict[str, object]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        for name, value in parameters.items()
    }


def _view_of(
    proto: pb.ModelInferRequest.InferInputTensor, raw: bytes | None, budget: FillBudget
) -> TensorView:
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


_RAW_TAG: Final = wire.tag(6, wire.DELIMITED)


@dataclass(frozen=True, slots=True)
class InferReplies:
    """Writes ``ModelInferResponse``, in parts if it is large.

    A ``ReplyWriter``. Immutable. An output that the protocol has no datatype for raises
    Unimplemented.

    Attributes:
        request_id: What the answer repeats; only requests without one come together.
        is_raw: Whether contents are raw, as those of the request. They are in any case
            if an output's datatype has no typed field.

    """

    request_id: bytes = b""
    is_raw: bool = True

    def write_if_quick(self, answerer: Answerer, outputs: Tensors) -> Reply | None:
        # Of many strings, or typed values, each takes 0.1 us.
        for view in outputs.values():
            if (view.dtype is STRING or not self.is_raw) and not is_quickly_written(
                view.data, view.dtype.item_bytes
            ):
                return None
        return self.write(answerer, outputs)

    def write(self, answerer: Answerer, outputs: Tensors) -> Reply:
        if not self.is_raw and all(v.dtype in CONTENTS for v in outputs.values()):
            return self._typed(answerer, outputs)
        key = tuple([(name, view.dtype, view.shape) for name, view in outputs.items()])
        head = _head(answerer, key)
        if self.request_id:
            head = wire.delimited(3, self.request_id) + head  # fields have no order
        parts: list[bytes | memoryview] = [head]
        is_large = False
        for view in outputs.values():
            contents = raw_contents(view)
            parts += (_RAW_TAG + wire.varint(len(contents)), contents)
            is_large = is_large or len(contents) >= LARGE_BYTES
        return tuple(parts) if is_large else b"".join(parts)

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> list[bytes] | None:
        fields: list[tuple[bytes, Buffer, int]] = []
        key: list[tuple[str, DType, tuple[int, ...]]] = []
        for name, view in outputs.items():
            data = view.data
            if isinstance(data, tuple):
                return None
            size = len(data) // view.shape[0] * num_rows
            if not size or size >= LARGE_BYTES:
                return None
            fields.append((_RAW_TAG + wire.varint(size), data, size))
            key.append((name, view.dtype, (num_rows, *view.shape[1:])))
        return cut_replies(_head(answerer, tuple(key)), fields, b"", num_replies)

    def _typed(self, answerer: Answerer, outputs: Tensors) -> bytes:
        response = pb.ModelInferResponse(
            model_name=answerer[0],
            model_version=str(answerer[1]),
            id=self.request_id.decode(),
        )
        for name, view in outputs.items():
            proto = response.outputs.add(
                name=name, datatype=datatype_of(name, view.dtype), shape=view.shape
            )
            field, code = CONTENTS[view.dtype]
            # Little-endian as this machine's, which is x86-64 or ARM.
            values: Any = (
                view.strings
                if view.dtype is STRING
                else memoryview(view.buffer).cast(code)  # type: ignore[call-overload]
            )
            getattr(proto.contents, field).extend(values)
        return response.SerializeToString()


@lru_cache(2048)
def _head(
    answerer: Answerer, key: tuple[tuple[str, DType, tuple[int, ...]], ...]
) -> bytes:
    """Returns everything before the raw contents."""
    parts = [
        wire.delimited(1, answerer[0].encode()),
        wire.delimited(2, str(answerer[1]).encode()),
    ]
    for name, dtype, shape in key:
        tensor = wire.delimited(1, name.encode()) + wire.delimited(
            2, datatype_of(name, dtype).encode()
        )
        if shape:
            tensor += wire.delimited(3, b"".join(map(wire.varint, shape)))
        parts.append(wire.delimited(5, tensor))
    return b"".join(parts)
