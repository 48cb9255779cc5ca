"""Modules whose results some forms of a model cannot hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class TopTwo(nn.Module):
    """Returns one of torch's own named tuples."""

    def forward(self, x: Tensor) -> object:
        """Returns the two largest values of each row, and where they are."""
        return torch.topk(x, 2)


@dataclass
class Measure:
    """A result with a name."""

    mean: Tensor


class Measures(nn.Module):
    """Returns a dataclass, whose methods have no source."""

    def forward(self, x: Tensor) -> Measure:
        """Returns the mean of each row."""
        return Measure(mean=x.mean(1))
