"""Between torch tensors and the bytes of manifests and example files."""

from __future__ import annotations

from typing import Final

import torch

from tfs.core.dtype import DTYPES, STRING, DType

TORCH_DTYPES: Final[dict[DType, torch.dtype]] = {
    each: getattr(torch, name)
    for name, each in DTYPES.items()
    if each is not STRING and hasattr(torch, name)
}
"""Every element type torch knows, by ours."""

_BY_TORCH: Final = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}


def dtype_of(tensor: torch.Tensor) -> DType:
    """Returns our element type of a tensor.

    Raises:
        ValueError: There is none (a quantized type, for instance).

    """
    try:
        return _BY_TORCH[tensor.dtype]
    except KeyError:
        raise ValueError(f"{tensor.dtype} cannot be served") from None


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Returns the elements, little-endian and row-major. Copies."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return b""
    array = flat.view(torch.uint8).numpy()
    return bytes(array.tobytes())


def tensor_of(dtype: DType, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    """Returns the tensor whose elements ``data`` holds. Copies."""
    if not data:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    flat = torch.frombuffer(bytearray(data), dtype=TORCH_DTYPES[dtype])
    return flat.reshape(shape)
