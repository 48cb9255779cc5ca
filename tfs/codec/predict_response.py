"""Writes ``PredictResponse``: a remembered prefix, the elements, a remembered rest.

The bytes around a tensor's elements depend only on names, dtype and shape, and those
recur. If the elements are raw bytes, a reply is one join. Strings, and types that
travel as varints, are packed by protobuf; if there are many, another thread than the
serving loop writes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard, TypeVar

from tfs.codec import wire
from tfs.codec.model_spec import ModelSpec, write_model_spec
from tfs.codec.tensor import (
    BY_DTYPE,
    is_quickly_written,
    raw_head,
    shape_field,
    typed_parts,
)
from tfs.core.dtype import STRING, DType
from tfs.core.servable import Tensors
from tfs.core.tensor_view import LARGE_BYTES, Buffer

_K = TypeVar("_K")
_V = TypeVar("_V")


Reply: TypeAlias = "bytes | tuple[bytes | memoryview, ...]"
"""A message, or its parts in order."""


Answerer: TypeAlias = tuple[str, int, str]
"""The model, its version and its signature that have answered."""


@dataclass(frozen=True, slots=True)
class PredictReplies:
    """Writes ``PredictResponse``. Immutable.

    Elements are copied once, or not at all if they are many and nobody can change them;
    then they are a part of their own.

    Attributes:
        as_tensor_content: Put elements into ``tensor_content`` rather than into the
            typed fields, which every client reads. Strings stay typed.

    """

    as_tensor_content: bool = False

    def write_if_quick(self, answerer: Answerer, outputs: Tensors) -> Reply | None:
        """Returns the reply, in parts if it is large.

        None if there are many strings, or numbers that travel as varints: :meth:`write`
        writes those, off the serving loop.
        """
        raw = self.as_tensor_content
        model, version, signature_name = answerer
        if len(outputs) == 1:
            for name, view in outputs.items():
                data = view.data
                key = (
                    name,
                    view.dtype,
                    view.shape,
                    version,
                    model,
                    signature_name,
                    raw,
                )
                frame = _frames.get(key)
                if frame is not None:
                    if len(data) >= LARGE_BYTES and _is_immutable(data):
                        return frame[0], data, frame[1]
                    return b"".join((frame[0], data, frame[1]))  # type: ignore[arg-type]
        for view in outputs.values():
            kind = BY_DTYPE[view.dtype]
            is_raw = kind.is_raw or (raw and kind.dtype is not STRING)
            if not is_raw and not is_quickly_written(view.data, kind.dtype.item_bytes):
                return None
        return self.write(answerer, outputs)

    def write(self, answerer: Answerer, outputs: Tensors) -> Reply:
        """Returns the reply, in parts if it is large, however long that takes."""
        raw = self.as_tensor_content
        model, version, signature_name = answerer
        parts: list[Buffer] = []
        is_raw = True
        for name, view in outputs.items():
            head, tensor_head = _entry(name, view.dtype, view.shape, raw)
            if tensor_head is None:
                parts.append(head)
                parts.append(view.data)  # type: ignore[arg-type]  # raw, so no strings
            else:
                is_raw = False
                typed = typed_parts(BY_DTYPE[view.dtype], view.data)
                tensor_bytes = len(tensor_head) + sum(map(len, typed))
                tensor_size = wire.varint(tensor_bytes)
                num_bytes = wire.varint(len(head) + len(tensor_size) + tensor_bytes)
                parts += (b"\x0a", num_bytes, head, tensor_size, tensor_head, *typed)
        spec = spec_field(model, version, signature_name)
        if is_raw and len(outputs) == 1:
            key = (name, view.dtype, view.shape, version, model, signature_name, raw)
            _remember(_frames, key, (head, spec))
        parts.append(spec)
        if len(parts) <= _MAX_PARTS and any(
            len(part) >= LARGE_BYTES and _is_immutable(part) for part in parts
        ):
            return tuple(part if _is_immutable(part) else bytes(part) for part in parts)
        return b"".join(parts)

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> list[bytes] | None:
        """Returns the replies to requests that were computed together.

        Reply ``i`` is what :meth:`write` makes of the rows from ``i * num_rows`` to
        ``(i + 1) * num_rows`` of every output; further rows are padding. None if that
        takes more than copying elements: for strings, types that travel as varints, and
        large replies.
        """
        raw = self.as_tensor_content
        model, version, signature_name = answerer
        fields: list[tuple[bytes, Buffer, int]] = []
        spec = None
        num_bytes = 0
        for name, view in outputs.items():
            data = view.data
            shape = (num_rows, *view.shape[1:])
            key = (name, view.dtype, shape, version, model, signature_name, raw)
            frame = _frames.get(key) if len(outputs) == 1 else None
            if frame is not None:
                head, spec = frame
            else:
                head, tensor_head = _entry(name, view.dtype, shape, raw)
                if tensor_head is not None:
                    return None
            size = len(data) // view.shape[0] * num_rows
            if not size:
                return None
            fields.append((head, data, size))  # type: ignore[arg-type]  # no strings
            num_bytes += size
        if num_bytes >= LARGE_BYTES:
            return None
        if spec is None:
            spec = spec_field(model, version, signature_name)
            if len(fields) == 1:
                _remember(_frames, key, (head, spec))
        return cut_replies(b"", fields, spec, num_replies)


def cut_replies(
    before: bytes,
    fields: Sequence[tuple[bytes, Buffer, int]],
    after: bytes,
    num_replies: int,
) -> list[bytes]:
    """Returns replies to requests that were computed together.

    Args:
        before: What every reply begins with.
        fields: By output, what precedes its elements, those of all replies, and how many
            bytes of them each reply gets.
        after: What every reply ends with.
        num_replies: How many replies.

    """
    if len(fields) == 1:
        ((head, data, size),) = fields
        head = before + head
        return [
            b"".join((head, data[start : start + size], after))
            for start in range(0, size * num_replies, size)
        ]
    replies = []
    for index in range(num_replies):
        parts: list[Buffer] = [before]
        for head, elements, size in fields:
            parts += (head, elements[index * size : (index + 1) * size])
        parts.append(after)
        replies.append(b"".join(parts))
    return replies


def _is_immutable(
    data: Buffer | tuple[bytes, ...],
) -> TypeGuard[bytes | memoryview]:
    """Tells whether elements can never change, whatever happens to their model."""
    return isinstance(data, bytes) or (isinstance(data, memoryview) and data.readonly)


_Entry: TypeAlias = tuple[bytes, bytes | None]
"""A map entry up to the elements; or up to the tensor, and the tensor up to them."""

# Prefixes that recur. The caches are bounded, emptied when full, and written under the
# GIL.
_MAX_REMEMBERED = 2048
_MAX_PARTS = 64  # more are joined, however large
_frames: dict[
    tuple[str, DType, tuple[int, ...], int, str, str, bool], tuple[bytes, bytes]
] = {}
_entries: dict[tuple[str, DType, tuple[int, ...], bool], _Entry] = {}
_specs: dict[tuple[str, int, str], bytes] = {}


def _entry(
    name: str, dtype: DType, shape: tuple[int, ...], as_tensor_content: bool
) -> _Entry:
    """Returns the bytes before a tensor's elements."""
    key = (name, dtype, shape, as_tensor_content)
    entry = _entries.get(key)
    if entry is None:
        kind = BY_DTYPE[dtype]
        before = wire.delimited(1, name.encode()) + b"\x12"
        head = raw_head(kind, shape, as_tensor_content=as_tensor_content)
        if head is None:  # the values need packing
            entry = before, b"\x08" + wire.varint(kind.number) + shape_field(shape)
        else:
            num_bytes = math.prod(shape) * dtype.item_bytes
            before += wire.varint(len(head) + num_bytes) + head
            entry = b"\x0a" + wire.varint(len(before) + num_bytes) + before, None
        _remember(_entries, key, entry)
    return entry


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
