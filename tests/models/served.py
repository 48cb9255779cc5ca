"""Small models for servers in tests.

They have a file of their own, because a package holds the whole file of a model: with the
tests' own means beside them, they would be code that no server process runs.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn


class Scale(nn.Module):
    """Multiplies by a constant, which tells the versions apart."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns ``y`` [batch, 2], for ``x`` [batch, 2]."""
        return {"y": x * self.factor}


class Masks(nn.Module):
    """Answers each row of four values with 10 MB."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns ``y`` [batch, 2621440], for ``x`` [batch, 4]."""
        return {"y": x.repeat(1, 655_360)}


class Sleeper(nn.Module):
    """Sleeps for as many seconds as its first value says, and says so."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns ``y``, which is ``x`` [batch, 2]."""
        print("asleep", flush=True)
        time.sleep(float(x[0, 0]))
        return {"y": x}


class Busy(nn.Module):
    """Computes without end, if its first value is beyond 1, and says so."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns ``y``, which is ``x`` [batch, 2]."""
        if float(x[0, 0]) > 1:
            print("busy", flush=True)
            square = torch.ones(400, 400)
            while True:
                square = square @ square
        return {"y": x}


class Slow(nn.Module):
    """Takes some milliseconds, however many rows there are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("much", torch.ones(1 << 19))

    def forward(self, x: Tensor) -> Tensor:
        much = self.much
        assert isinstance(much, Tensor)
        for _ in range(5):
            x = x + torch.sin(much).sum() * 0
        return x + 1


class TwoStreams(nn.Module):
    """Two tensors cross from its first operator to its last."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = Slow()

    def forward(self, x: Tensor) -> Tensor:
        y, z = self.slow(x), x * 2
        y = self.slow(y)
        return torch.cat([y, z], 1)
