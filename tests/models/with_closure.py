"""A module with a value that cannot be pickled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Closure(nn.Module):
    """Calls a lambda of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.function: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)
