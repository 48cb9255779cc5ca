"""Tensors and plain values between two Pythons of one process, named by address.

A description contains no object, only numbers and strings that ``marshal`` accepts. The
side that describes a tensor keeps it until the other side has read it. The reader
copies it once, because the two Pythons know nothing of each other's references.
"""

from __future__ import annotations

import ctypes
from typing import TypeAlias

import torch

from tfs.runtime.guest.sessions.value_codec import Ref, cannot_pass, passing, too_deep
from tfs.runtime.guest.slab import DTYPE_CODES, DTYPE_OF_CODE
from tfs.runtime.guest.torch_tensor import DTYPE_OF, TORCH_DTYPES, plain

SharedTensor: TypeAlias = "tuple[int, tuple[int, ...], int | tuple[bytes, ...]]"
"""Code of the dtype, shape, and address of the elements; strings are passed as they
are."""

_PLAIN_TYPES = (bool, int, float, str, bytes, type(None))


def describe(tensor: torch.Tensor, kept: list[torch.Tensor]) -> SharedTensor:
    """Returns a tensor's description; adds what has to stay alive for it to ``kept``."""
    dense = plain(tensor)
    kept.append(dense)
    code = DTYPE_CODES[DTYPE_OF[dense.dtype]]
    return code, tuple(dense.shape), dense.data_ptr()


def tensor_at(code: int, shape: tuple[int, ...], address: int) -> torch.Tensor:
    """Returns a copy of the tensor described; it owns its memory."""
    tensor = torch.empty(shape, dtype=TORCH_DTYPES[DTYPE_OF_CODE[code]])
    ctypes.memmove(tensor.data_ptr(), address, tensor.nbytes)
    return tensor


def describe_value(value: object, kept: list[torch.Tensor]) -> object:
    """Returns the description of a tensor, a plain value, or a container of such.

    Raises:
        InvalidArgument: It is, or holds, something else.

    """
    try:
        return _described(value, kept)
    except RecursionError as error:
        raise too_deep() from error


def _described(value: object, kept: list[torch.Tensor]) -> object:
    if isinstance(value, torch.Tensor):
        try:
            return ("t", *describe(value.detach(), kept))
        except (KeyError, NotImplementedError, RuntimeError):
            passing(value)  # says what is wrong with it
            raise
    if type(value) in _PLAIN_TYPES:
        return value
    match value:
        case Ref(ref_id):
            return ("r", ref_id)
        case list():
            return ("l", [_described(item, kept) for item in value])
        case tuple():
            return ("u", [_described(item, kept) for item in value])
        case dict():
            pairs = [
                (_described(key, kept), _described(item, kept))
                for key, item in value.items()
            ]
            return ("d", pairs)
    raise cannot_pass(value)


def value_at(form: object) -> object:
    """Returns the value described; tensors are copied and own their memory."""
    if not isinstance(form, tuple):
        return form
    match form:
        case ("t", int(code), shape, int(address)):
            return tensor_at(code, shape, address)
        case ("r", int(ref_id)):
            return Ref(ref_id)
        case ("l", items):
            return [value_at(item) for item in items]
        case ("u", items):
            return tuple(value_at(item) for item in items)
        case ("d", pairs):
            return {value_at(key): value_at(item) for key, item in pairs}
    raise ValueError("a value of unknown form")
