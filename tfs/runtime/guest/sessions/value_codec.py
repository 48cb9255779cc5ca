"""Writes plain values and tensors as bytes, for sessions. Reading them runs no code.

    8 bytes length of the pickle | pickle | tensors, each at a multiple of 64

Tensors and objects that stay in their interpreter are persistent ids in the pickle, and
what reads it knows no function that a pickle could call.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from tfs.core.dtype import DTYPES
from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.torch_tensor import DTYPE_OF, plain, tensor_over

_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 64
_CONTAINERS: Final = {kind.__name__: kind for kind in (dict, list, tuple)}


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for an object that stays in its interpreter. Immutable."""

    number: int


def encode(
    value: object, number_of: Callable[[object], int | None] = lambda _object: None
) -> bytes:
    """Returns a value's bytes; tensors are copied once.

    Args:
        value: A plain value, a tensor, a :class:`Ref`, or a container of such.
        number_of: Returns the number of an object that stays where it is; None for
            others.

    Raises:
        InvalidArgument: It is, or holds, something else.

    """
    buffer = io.BytesIO()
    writer = _Writer(buffer, number_of)
    try:
        writer.dump(value)
    except RecursionError as error:
        raise InvalidArgument(
            "a value that is nested too deeply cannot pass between interpreters"
        ) from error
    pickled = buffer.getvalue()
    head = len(pickled).to_bytes(_LENGTH_BYTES, "little") + pickled
    return b"".join([head + bytes(-len(head) % _ALIGNMENT), *writer.blobs])


def decode(data: bytes, object_of: Callable[[int], object] = Ref) -> object:
    """Returns the value that ``encode`` wrote; its tensors own their memory.

    Args:
        data: The bytes.
        object_of: Returns what a reference stands for.

    Raises:
        pickle.UnpicklingError: The bytes are damaged, or would run code.

    """
    stop = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    blobs = memoryview(data)[stop + -stop % _ALIGNMENT :]
    return _Reader(io.BytesIO(data[_LENGTH_BYTES:stop]), blobs, object_of).load()


class _Writer(pickle.Pickler):
    """Writes plain values; keeps the elements of tensors in ``blobs``."""

    def __init__(
        self, buffer: io.BytesIO, number_of: Callable[[object], int | None]
    ) -> None:
        super().__init__(buffer, protocol=4)
        self.blobs: list[bytes] = []
        self._size_bytes = 0
        self._number_of = number_of

    def persistent_id(self, obj: object) -> object:
        if isinstance(obj, torch.Tensor):
            return self._add(obj)
        return obj.number if isinstance(obj, Ref) else self._number_of(obj)

    def reducer_override(self, obj: object) -> Any:
        # Python asks this for whatever is not of a plain type itself.
        for kind in _CONTAINERS.values():
            if obj is kind:
                return NotImplemented  # by its name, for the line below
            if isinstance(obj, kind):
                return kind, (kind(obj),)
        raise _cannot_pass(obj)

    def _add(self, tensor: torch.Tensor) -> tuple[str, tuple[int, ...], int, int]:
        dense = _passing(tensor)
        blob = ctypes.string_at(dense.data_ptr(), dense.nbytes)
        offset = self._size_bytes
        self.blobs.append(blob + bytes(-len(blob) % _ALIGNMENT))
        self._size_bytes += len(self.blobs[-1])
        return DTYPE_OF[dense.dtype].name, tuple(dense.shape), offset, len(blob)


class _Reader(pickle.Unpickler):
    def __init__(
        self, buffer: io.BytesIO, blobs: memoryview, object_of: Callable[[int], object]
    ) -> None:
        super().__init__(buffer)
        self._blobs = blobs
        self._object_of = object_of

    def persistent_load(
        self, pid: int | tuple[str, tuple[int, ...], int, int]
    ) -> object:
        if isinstance(pid, int):
            return self._object_of(pid)
        name, shape, offset, size_bytes = pid
        if not 0 <= offset <= offset + size_bytes <= len(self._blobs):
            raise pickle.UnpicklingError("a tensor outside its message")
        blob = bytearray(self._blobs[offset : offset + size_bytes])
        return tensor_over(DTYPES[name], shape, blob)

    def find_class(self, module: str, name: str) -> object:
        if module == "builtins" and name in _CONTAINERS:
            return _CONTAINERS[name]
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def _passing(tensor: torch.Tensor) -> torch.Tensor:
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


def _cannot_pass(value: object) -> InvalidArgument:
    kind = type(value)
    advice = ""
    if hasattr(value, "__array_interface__"):
        advice = ": pass torch.as_tensor(...) of it"
    return InvalidArgument(
        f"an object of type {kind.__module__}.{kind.__qualname__} cannot pass between "
        f"interpreters; tensors, numbers, strings and containers of them can{advice}"
    )
