"""Writes ``ModelInferResponse``: a remembered head, and the elements behind it.

Raw contents come last in a reply, so all before them depends on names, dtypes and shapes
alone, which recur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tfs.codec import wire
from tfs.codec.oip.datatype import datatype_of, raw_contents
from tfs.codec.oip.infer_request import CONTENTS
from tfs.codec.predict_response import Reply, cut_replies
from tfs.codec.tensor import QUICK_VALUES
from tfs.core.dtype import STRING, DType
from tfs.core.tensor_view import LARGE_BYTES, Buffer, TensorView
from tfs.proto.inference import open_inference_grpc_pb2 as pb

_Key = tuple[tuple[str, DType, tuple[int, ...]], ...]

_MAX_REMEMBERED: Final = 2048
_RAW_TAG: Final = wire.tag(6, wire.DELIMITED)
_QUICK_BYTES: Final = 1 << 18  # of strings

# Bounded, emptied when full, and written under the GIL.
_heads: dict[tuple[str, int, _Key], bytes] = {}


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


def _head(model: str, version: int, key: _Key) -> bytes:
    """Returns everything before the raw contents."""
    head = _heads.get((model, version, key))
    if head is None:
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
        head = b"".join(parts)
        if len(_heads) >= _MAX_REMEMBERED:
            _heads.clear()
        _heads[model, version, key] = head
    return head
