"""A model with two methods to serve."""

from __future__ import annotations

import torch
from torch import nn


class TwoWays(nn.Module):
    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x).sum(1)
