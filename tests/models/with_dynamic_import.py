"""A model whose import no scanner sees."""

from __future__ import annotations

import torch
from torch import nn


class Dynamic(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module = "with_global"
        found = __import__(f"tests.models.{module}", fromlist=["FACTOR"])
        factor: float = found.FACTOR
        return x * factor
