"""A model, its example and something else, for the command line to find."""

from __future__ import annotations

import torch
from torch import nn

from tfs.core.dtype import FLOAT32
from tfs.core.signature import FeatureKind, FeatureSpec
from tfs.export import Signature


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


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def scaled() -> Scaled:
    """Returns a model with a setting."""
    return Scaled()


def scaled_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns two rows, and the setting."""
    return example_inputs(), torch.tensor([2.0])


def plain() -> Signature:
    """Returns one more way to call it."""
    return Signature(example_inputs(), call="plain")


features = {"pixels": FeatureSpec("x", FeatureKind.FIXED, FLOAT32, (2,))}


def sorting_inputs() -> dict[str, object]:
    """Returns two rows for tests/servables/sorting_servable.py."""
    return {"numbers": torch.tensor([[2.0, 1, 3], [6, 5, 4]]), "names": ["a", "b"]}
