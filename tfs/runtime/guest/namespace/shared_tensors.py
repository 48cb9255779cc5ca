"""Tensors between two Pythons of one process, named by address.

A description contains no object, only numbers and strings that ``marshal`` accepts. The
side that describes a tensor keeps it until the other side has read it. The reader
copies it once, because the two Pythons know nothing of each other's references.
"""

from __future__ import annotations

import ctypes
from typing import TypeAlias

import torch

from tfs.runtime.guest.slab import DTYPE_CODES, DTYPE_OF_CODE
from tfs.runtime.guest.torch_tensor import DTYPE_OF, TORCH_DTYPES, plain

SharedTensor: TypeAlias = "tuple[int, tuple[int, ...], int | tuple[bytes, ...]]"
"""Code of the dtype, shape, and address of the elements; strings are passed as they
are."""


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
