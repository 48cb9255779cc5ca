"""Models in a file that imports libraries, needed to predict or not."""

from __future__ import annotations

import hypothesis
import numpy as np
import torch
from torch import nn


class Plotting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def check(self) -> object:
        return hypothesis.settings()


class UsesNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.flip(x.numpy(), 0).copy())
