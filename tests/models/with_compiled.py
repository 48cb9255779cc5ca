"""A model whose file has torch compile a function of it."""

from __future__ import annotations

import torch
from torch import nn


@torch.compile
def scaled(x: torch.Tensor) -> torch.Tensor:
    """Tells whether it was compiled."""
    return x * 2 if torch.compiler.is_compiling() else x * 3


class Scales(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(x)
