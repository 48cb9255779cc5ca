"""A model whose settings lie in dicts that show their items as attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn


class Strict(dict[str, Any]):
    """Raises KeyError for an attribute there is none of."""

    if not TYPE_CHECKING:
        __getattr__ = dict.__getitem__


class Lenient(dict[str, Any]):
    """Has every attribute; what it does not hold is None."""

    if not TYPE_CHECKING:
        __getattr__ = dict.get


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config: Any = Strict(scale=2.0, inner=Lenient(shift=1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * self.config.scale + self.config.inner.shift
        return scaled
