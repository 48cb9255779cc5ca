"""A multi-layer perceptron of 86 thousand weights: a small model that does compute."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Module):
    """Classifies x: float32 [batch, 64] into float32 [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x)
        return output
