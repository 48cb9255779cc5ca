"""The smallest model whose code can be told from an edited one."""

from __future__ import annotations

import torch
from torch import nn


class AddsOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1
