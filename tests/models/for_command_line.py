"""A model, its example and something else, for the command line to find."""

from __future__ import annotations

import torch
from torch import nn


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def net() -> Halves:
    """Returns the model."""
    return Halves()


def example_inputs() -> torch.Tensor:
    """Returns two rows."""
    return torch.tensor([[1.0, 2], [3, 4]])


def number() -> int:
    """Returns what is no model."""
    return 3


def sorting_inputs() -> dict[str, object]:
    """Returns two rows for tests/servables/sorting_servable.py."""
    return {"numbers": torch.tensor([[2.0, 1, 3], [6, 5, 4]]), "names": ["a", "b"]}
