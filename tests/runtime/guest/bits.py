"""Tensors to the bit, where equal numbers are not enough."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def bits(tensor: torch.Tensor) -> list[int]:
    """Returns the elements as integers of their width, row by row."""
    as_ints = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.dtype.itemsize]
    values: list[int] = tensor.contiguous().view(as_ints).flatten().tolist()
    return values


def images(
    shape: Sequence[int] = (2, 16, 33, 31), dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Returns a tensor with NaNs, infinities and both zeros among its elements."""
    generator = torch.Generator().manual_seed(3)
    elements = torch.randn(*shape, generator=generator).round(decimals=1)
    chosen = torch.randint(0, 40, tuple(shape), generator=generator)
    for index, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0)):
        elements[chosen == index] = value
    return elements.to(dtype)
