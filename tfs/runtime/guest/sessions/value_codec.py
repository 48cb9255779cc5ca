"""Writes plain values and tensors as bytes, for sessions. Reading them runs no code.

    8 bytes length of the header | header, JSON | tensors, each at a multiple of 64

Containers are spelled out in the header ({"l": [...]} is a list), so that a caller's
dict cannot be mistaken for a tensor.
"""

from __future__ import annotations

import base64
import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from tfs.core.dtype import DTYPES
from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.torch_tensor import DTYPE_OF, plain, tensor_over

_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 64
_PLAIN_TYPES: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for an object that stays in its interpreter. Immutable."""

    ref_id: int


def encode(value: object) -> bytes:
    """Returns a value's bytes; tensors are copied once.

    Raises:
        InvalidArgument: It is, or holds, something that is neither plain, a container
            of such, a tensor nor a :class:`Ref`.

    """
    blobs: list[bytes] = []
    try:
        header = json.dumps(_form(value, blobs, [0])).encode()
    except RecursionError as error:
        raise too_deep() from error
    head = len(header).to_bytes(_LENGTH_BYTES, "little") + header
    return b"".join([head + bytes(-len(head) % _ALIGNMENT), *blobs])


def decode(data: bytes, resolve: Callable[[Ref], object] = lambda ref: ref) -> object:
    """Returns the value that ``encode`` wrote; its tensors own their memory.

    Raises:
        ValueError: The bytes are damaged.

    """
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    stop = _LENGTH_BYTES + length
    if length > len(data):
        raise ValueError("a value cut short")
    form = json.loads(data[_LENGTH_BYTES:stop])
    start = stop + -stop % _ALIGNMENT
    return _value(form, memoryview(data)[start:], resolve)


def _form(value: object, blobs: list[bytes], size: list[int]) -> object:
    if isinstance(value, torch.Tensor):
        dense = passing(value)
        blob = ctypes.string_at(dense.data_ptr(), dense.nbytes)
        offset = size[0]
        padded = blob + bytes(-len(blob) % _ALIGNMENT)
        blobs.append(padded)
        size[0] += len(padded)
        name = DTYPE_OF[value.dtype].name
        return {"t": [name, list(value.shape), offset, len(blob)]}
    if type(value) in _PLAIN_TYPES:
        return value
    match value:
        case Ref(ref_id):
            return {"r": ref_id}
        case bytes():
            return {"b": base64.b64encode(value).decode()}
        case list():
            return {"l": [_form(item, blobs, size) for item in value]}
        case tuple():
            return {"u": [_form(item, blobs, size) for item in value]}
        case dict():
            pairs = [
                [_form(key, blobs, size), _form(item, blobs, size)]
                for key, item in value.items()
            ]
            return {"d": pairs}
    raise cannot_pass(value)


def passing(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's elements as they are passed on: dense, row-major, on the CPU.

    Raises:
        InvalidArgument: It has no elements, or elements that cannot be passed on.

    """
    if tensor.dtype not in DTYPE_OF or tensor.is_meta or tensor.is_nested:
        kind = str(tensor.dtype)
        if tensor.is_meta or tensor.is_nested:
            kind = "a meta device" if tensor.is_meta else "a nested layout"
        raise InvalidArgument(
            f"a tensor of {kind} cannot pass between interpreters; convert it first"
        )
    return plain(tensor.detach())


def too_deep() -> InvalidArgument:
    """Returns the error for containers that are nested too deeply."""
    return InvalidArgument(
        "a value that contains itself, or that is nested too deeply, cannot pass between "
        "interpreters"
    )


def cannot_pass(value: object) -> InvalidArgument:
    """Returns the error for a value that cannot be passed to another interpreter."""
    kind = type(value)
    advice = ""
    if hasattr(value, "__array_interface__"):
        advice = ": pass torch.as_tensor(...) of it"
    return InvalidArgument(
        f"an object of type {kind.__module__}.{kind.__qualname__} cannot pass between "
        f"interpreters; tensors, numbers, strings and containers of them can{advice}"
    )


def _value(form: object, blobs: memoryview, resolve: Callable[[Ref], object]) -> object:
    if not isinstance(form, dict):
        return form
    match form:
        case {"t": [str(name), list(shape), int(offset), int(size_bytes)]}:
            dtype = DTYPES[name]
            if offset < 0 or size_bytes < 0 or offset + size_bytes > len(blobs):
                raise ValueError("a tensor outside its message")
            blob = bytearray(blobs[offset : offset + size_bytes])
            return tensor_over(dtype, tuple(int(size) for size in shape), blob)
        case {"r": int(ref_id)}:
            return resolve(Ref(ref_id))
        case {"b": str(text)}:
            return base64.b64decode(text)
        case {"l": list(items)}:
            return [_value(item, blobs, resolve) for item in items]
        case {"u": list(items)}:
            return tuple(_value(item, blobs, resolve) for item in items)
        case {"d": list(pairs)}:
            values = {}
            for key, item in pairs:
                hashable = _value(key, blobs, resolve)
                values[hashable] = _value(item, blobs, resolve)
            return values
    raise ValueError("a value of unknown form")
