"""Writes the weights beside a ``servable.py``: tensors, or a file of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from typing import Final, TypeAlias

import torch

from tfs.core.errors import InvalidArgument
from tfs.export.values import view_of

Weights: TypeAlias = "Mapping[str, torch.Tensor] | str | os.PathLike[str]"

_WEIGHTS: Final = ("weights.safetensors", "weights.pt")
_SAFETENSORS_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def write_weights(weights: Weights, folder: str) -> None:
    """Puts the weights of a ``servable.py`` into a version's directory.

    Raises:
        InvalidArgument: They have a form that no server reads.

    """
    if isinstance(weights, Mapping):
        write_safetensors(weights, os.path.join(folder, _WEIGHTS[0]))
        return
    place = os.fspath(weights)
    if not os.path.isfile(place):
        raise InvalidArgument(f"no such weights: {place}")
    suffix = os.path.splitext(place)[1]
    for name in _WEIGHTS:
        if name.endswith(suffix) and suffix:
            shutil.copyfile(place, os.path.join(folder, name))
            return
    raise InvalidArgument(f"weights must be a .safetensors or a .pt file: {place}")


def write_safetensors(tensors: Mapping[str, torch.Tensor], path: str) -> None:
    """Writes tensors as a safetensors file, aligned for mapping.

    Raises:
        InvalidArgument: The format has no name for a tensor's type.

    """
    header: dict[str, object] = {}
    # Tensors with the largest elements come first, so that every tensor is aligned to
    # the size of its elements.
    names = sorted(tensors, key=lambda name: -getattr(tensors[name], "itemsize", 0))
    offset = 0
    for name in names:
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(
                f"weights: {name!r} is a {type(tensor).__name__}, not a tensor"
            )
        if tensor.dtype not in _SAFETENSORS_NAMES:
            raise InvalidArgument(f"weights: {name!r} is {tensor.dtype}")
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(view_of(tensors[name]).buffer)
