"""Writes ``PredictResponse``: a remembered prefix, the elements, a remembered rest.

The bytes around a tensor's elements depend only on names, dtype and shape, and those
recur. If the elements are raw bytes, a reply is one join. Strings, and types that
travel as varints, are packed by protobuf; if there are many, another thread than the
serving loop writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeGuard, TypeVar

from tfs.codec import wire
from tfs.codec.model_spec import ModelSpec, write_model_spec
from tfs.codec.tensor import is_quickly_written, raw_head, shape_field, typed_parts
from tfs.codec.wire_type import BY_DTYPE
from tfs.core.dtype import STRING, DType
from tfs.core.tensor_view import LARGE_BYTES, Buffer, TensorView

_K = TypeVar("_K")
_V = TypeVar("_V")


Reply: TypeAlias = "bytes | tuple[bytes | memoryview, ...]"
"""A message, or its parts in order."""


def write_predict_reply(
    model_name: str,
    version: int,
    signature_name: str,
    outputs: Mapping[str, TensorView],
    *,
    as_tensor_content: bool = False,
) -> Reply:
    """Returns the serialized reply, in parts if it is large. Thread-safe.

    This may take long; for the arguments see :func:`write_if_quick`.
    """
    reply = write_if_quick(
        model_name,
        version,
        signature_name,
        outputs,
        as_tensor_content=as_tensor_content,
    )
    if reply is None:
        reply = _write(model_name, version, signature_name, outputs, as_tensor_content)
    return reply


def write_if_quick(
    model_name: str,
    version: int,
    signature_name: str,
    outputs: Mapping[str, TensorView],
    *,
    as_tensor_content: bool = False,
) -> Reply | None:
    """Returns the serialized reply, in parts if it is large. Thread-safe.

    Elements are copied once, or not at all if they are many and nobody can change them;
    then they are a part of their own. Returns None if there are many strings, or
    numbers that travel as varints: :func:`write_predict_reply` writes those, off the
    serving loop.

    Args:
        model_name: Reported in ``model_spec``, like the next two.
        version: The version that answered.
        signature_name: The signature that answered.
        outputs: Every tensor of the reply, by name.
        as_tensor_content: Put elements into ``tensor_content`` rather than into the
            typed fields, which every client reads. Strings stay typed.

    """
    if len(outputs) == 1:
        for name, view in outputs.items():
            frame = _frames.get(
                (
                    name,
                    view.dtype,
                    view.shape,
                    version,
                    model_name,
                    signature_name,
                    as_tensor_content,
                )
            )
            if frame is not None:
                data = view.data
                if len(data) >= LARGE_BYTES and _is_immutable(data):
                    return frame[0], data, frame[1]
                return b"".join((frame[0], data, frame[1]))  # type: ignore[arg-type]
    for view in outputs.values():
        kind = BY_DTYPE[view.dtype]
        is_raw = kind.is_raw or (as_tensor_content and kind.dtype is not STRING)
        if not is_raw and not is_quickly_written(view.data, kind.dtype.item_bytes):
            return None
    return _write(model_name, version, signature_name, outputs, as_tensor_content)


def write_predict_replies(
    model_name: str,
    version: int,
    signature_name: str,
    outputs: Mapping[str, TensorView],
    num_rows: int,
    num_replies: int,
    *,
    as_tensor_content: bool = False,
) -> list[bytes] | None:
    """Returns the replies to requests that were computed together. Thread-safe.

    Reply ``i`` is what :func:`write_predict_reply` makes of the rows from
    ``i * num_rows`` to ``(i + 1) * num_rows`` of every output. Returns None if that
    takes more than copying elements: for strings, types that travel as varints, and
    large replies.

    Args:
        model_name: As in :func:`write_if_quick`, like the next two.
        version: The version that answered.
        signature_name: The signature that answered.
        outputs: Tensors with at least ``num_rows * num_replies`` rows.
        num_rows: Rows of each reply.
        num_replies: How many replies.
        as_tensor_content: See :func:`write_if_quick`.

    """
    row_key = None
    if len(outputs) == 1:
        ((name, view),) = outputs.items()
        row_key = (
            name,
            view.dtype,
            view.shape[1:],
            num_rows,
            version,
            model_name,
            signature_name,
            as_tensor_content,
        )
        frame = _row_frames.get(row_key)
        if frame is not None:
            head, spec, size = frame
            elements = view.data
            return [
                b"".join((head, elements[start : start + size], spec))  # type: ignore[arg-type]
                for start in range(0, size * num_replies, size)
            ]
    fields: list[tuple[bytes, Buffer, int]] = []
    num_bytes = 0
    for name, view in outputs.items():
        data = view.data
        if isinstance(data, tuple):
            return None
        shape = (num_rows, *view.shape[1:])
        key = (name, view.dtype, shape, as_tensor_content)
        entry = _entries.get(key)
        if entry is None:
            entry = _raw_entry(
                name, TensorView(view.dtype, shape, b""), as_tensor_content
            )
            if entry is None:
                return None
            _remember(_entries, key, entry)
        if entry[1] is not None:
            return None
        size = len(data) // view.shape[0] * num_rows
        if not size:
            return None
        fields.append((entry[0], data, size))
        num_bytes += size
    if num_bytes >= LARGE_BYTES:
        return None
    spec = spec_field(model_name, version, signature_name)
    if row_key is not None:
        head, _, size = fields[0]
        _remember(_row_frames, row_key, (head, spec, size))
    replies = []
    for index in range(num_replies):
        parts: list[Buffer] = []
        for head, data, size in fields:
            parts += (head, data[index * size : (index + 1) * size])
        parts.append(spec)
        replies.append(b"".join(parts))
    return replies


def _is_immutable(
    data: Buffer | tuple[bytes, ...],
) -> TypeGuard[bytes | memoryview]:
    """Tells whether elements can never change, whatever happens to their model."""
    return isinstance(data, bytes) or (isinstance(data, memoryview) and data.readonly)


_Entry: TypeAlias = tuple[bytes, bytes | None]
"""A map entry up to the elements; or up to the tensor, and the tensor up to them."""

# Prefixes that recur. The cache is bounded, emptied when full, and written under the
# GIL.
_MAX_REMEMBERED = 2048
_MAX_PARTS = 64  # more are joined, however large
_frames: dict[
    tuple[str, DType, tuple[int, ...], int, str, str, bool], tuple[bytes, bytes]
] = {}
_row_frames: dict[
    tuple[str, DType, tuple[int, ...], int, int, str, str, bool],
    tuple[bytes, bytes, int],
] = {}
_entries: dict[tuple[str, DType, tuple[int, ...], bool], _Entry] = {}
_specs: dict[tuple[str, int, str], bytes] = {}


def _write(
    model_name: str,
    version: int,
    signature_name: str,
    outputs: Mapping[str, TensorView],
    as_tensor_content: bool,
) -> Reply:
    parts: list[Buffer] = []
    is_raw = True
    for name, view in outputs.items():
        key = (name, view.dtype, view.shape, as_tensor_content)
        entry = _entries.get(key)
        if entry is None:
            entry = _raw_entry(name, view, as_tensor_content) or _typed_entry(
                name, view
            )
            _remember(_entries, key, entry)
        head, tensor_head = entry
        if tensor_head is None:
            parts.append(head)
            parts.append(view.data)  # type: ignore[arg-type]  # raw, so no strings
        else:
            is_raw = False
            typed = typed_parts(BY_DTYPE[view.dtype], view.data)
            tensor_bytes = len(tensor_head) + sum(map(len, typed))
            tensor_size = wire.varint(tensor_bytes)
            num_bytes = len(head) + len(tensor_size) + tensor_bytes
            parts += (b"\x0a", wire.varint(num_bytes), head, tensor_size, tensor_head)
            parts += typed
    spec = spec_field(model_name, version, signature_name)
    if is_raw and len(parts) == 2:
        frame = (bytes(parts[0]), spec)
        (name,) = outputs
        view = outputs[name]
        _remember(
            _frames,
            (
                name,
                view.dtype,
                view.shape,
                version,
                model_name,
                signature_name,
                as_tensor_content,
            ),
            frame,
        )
    parts.append(spec)
    if len(parts) <= _MAX_PARTS and any(
        len(part) >= LARGE_BYTES and _is_immutable(part) for part in parts
    ):
        return tuple(part if _is_immutable(part) else bytes(part) for part in parts)
    return b"".join(parts)


def _raw_entry(name: str, view: TensorView, as_tensor_content: bool) -> _Entry | None:
    """Returns the bytes before a tensor's elements; None if those are not raw."""
    head = raw_head(
        BY_DTYPE[view.dtype], view.shape, as_tensor_content=as_tensor_content
    )
    if head is None:
        return None
    num_bytes = view.num_elements * view.dtype.item_bytes
    tensor_bytes = wire.varint(len(head) + num_bytes)
    before = wire.delimited(1, name.encode()) + b"\x12" + tensor_bytes + head
    return b"\x0a" + wire.varint(len(before) + num_bytes) + before, None


def _typed_entry(name: str, view: TensorView) -> _Entry:
    """Returns the bytes before a tensor's size and values, for values that need packing."""
    number = wire.varint(BY_DTYPE[view.dtype].number)
    return (
        wire.delimited(1, name.encode()) + b"\x12",
        b"\x08" + number + shape_field(view.shape),
    )


def spec_field(model_name: str, version: int, signature_name: str) -> bytes:
    """Returns a response's field 2, its ``model_spec``, with its tag. Thread-safe."""
    key = (model_name, version, signature_name)
    field = _specs.get(key)
    if field is None:
        spec = ModelSpec(model_name, version, None, signature_name)
        field = wire.delimited(2, write_model_spec(spec))
        _remember(_specs, key, field)
    return field


def _remember(cache: dict[_K, _V], key: _K, value: _V) -> None:
    if len(cache) >= _MAX_REMEMBERED:
        cache.clear()
    cache[key] = value
