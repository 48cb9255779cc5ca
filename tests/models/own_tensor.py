"""A tensor that computes by itself and has no memory, as libraries for quantizing make."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn
from torch.utils._pytree import tree_map


class Scaled(torch.Tensor):
    """Eight bits an element, and whole numbers only while something is computed."""

    codes: torch.Tensor

    @staticmethod
    def __new__(cls, full: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, full.shape, dtype=full.dtype)

    def __init__(self, full: torch.Tensor) -> None:
        self.codes = (full * 127).to(torch.int8)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def whole(value: object) -> object:
            return value.codes.float() / 127 if isinstance(value, Scaled) else value

        if func is torch.ops.aten.detach.default:
            return args[0]
        return func(*tree_map(whole, args), **tree_map(whole, kwargs or {}))


class Small(nn.Module):
    """Holds such a tensor: as a buffer, a parameter or in an attribute."""

    def __init__(self, how: str) -> None:
        super().__init__()
        tensor: Any = Scaled(torch.rand(3, 4))
        if how == "buffer":
            self.register_buffer("w", tensor)
        elif how == "parameter":
            self.w = nn.Parameter(tensor, requires_grad=False)
        else:
            self.w = tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.w)
