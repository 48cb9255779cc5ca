"""A model whose answer depends on a global variable."""

from __future__ import annotations

import torch
from torch import nn

FACTOR = 1.0


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR
