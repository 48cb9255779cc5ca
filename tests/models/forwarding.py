"""Wrappers of an author's own that look like torch's, and compute something else."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Calibrated(nn.Module):
    """Answers for its net whatever it does not have itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.heat = nn.Parameter(torch.tensor(2.0))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("net"), name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.net(x) / self.heat
        return y


class DataParallel(nn.Module):
    """Has the name of torch's class."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.module(x) * 3
        return y


class Averaged(torch.optim.swa_utils.AveragedModel):
    """Is torch's class, and does more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.module(x) - 1
        return y


def described(function: Any) -> Any:
    """Marks a function as others do: with a schema of arguments that is none of torch's."""
    function.schema = {"arguments": []}
    return function


class Described(nn.Module):
    @described
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1
