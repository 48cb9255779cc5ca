"""A small classifier with an input of its own name, for pages of the documentation."""

from __future__ import annotations

import torch
from torch import nn


class Flowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x).softmax(1)
        return scores
