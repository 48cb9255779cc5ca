"""A network of one layer: what is left of a load when the model is nothing."""

from __future__ import annotations

import torch
from torch import nn


class OneLayer(nn.Module):
    """Four numbers to two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns float32 [batch, 2]."""
        result: torch.Tensor = self.layer(x)
        return result
