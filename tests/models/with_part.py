"""A network whose core is batched across concurrent requests."""

from __future__ import annotations

import torch
from torch import nn

from tfs.runtime.batched import batched


class WithPart(nn.Module):
    """Centres each row on its own, and computes the rest together with others."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.core = batched(self.net, max_batch_size=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.core(x - x.mean(1, keepdim=True))
        return y
