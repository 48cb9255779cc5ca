"""Models that take and give containers of tensors, as real ones do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


@dataclass
class Detections:
    """What a detector's head returns; ``loss`` while it trains."""

    scores: Tensor
    boxes: list[Tensor]
    loss: Tensor | None = None


class Detector(nn.Module):
    """Takes a dict of features and a pair of states; returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(
        self, features: Mapping[str, Tensor], state: tuple[Tensor, Tensor]
    ) -> Detections:
        both = torch.cat([features["low"], features["high"]], 1)
        scores = self.net(both) + state[0] - state[1]
        return Detections(scores, [both, both * 2])


class Measured(nn.Module):
    """Takes an object by its attributes, whatever its class."""

    def forward(self, query: Any) -> Tensor:
        length: Tensor = query.span.high - query.span.low
        factor: float | Tensor = query.factor if query.weight is None else query.weight
        return length * factor


class Heads(nn.Module):
    """Returns a tuple with a tuple in it, and nothing for one part."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], None]:
        return x + 1, (x * 2, x * 3), None


class Measures(nn.Module):
    """Returns what is no tensor: numbers of Python."""

    def forward(self, x: Tensor) -> dict[str, object]:
        """Returns one number per row, one per value, and two of the whole."""
        means = [float(row.mean()) for row in x]
        return {
            "mean": means,
            "signs": [[bool(value > 0) for value in row] for row in x],
            "size": len(x),
        }


class Moments(NamedTuple):
    """Named, and no container that a graph knows."""

    mean: Tensor
    deviation: Tensor


class TakesAnyName(nn.Module):
    """Takes what callers name as they like; returns a named tuple."""

    def forward(self, **rows: Tensor) -> Moments:
        both = rows["left"] + rows["right"]
        return Moments(both.mean(1), both.std(1))


class Undecided(nn.Module):
    """Does what no graph can: asks a tensor what to do next."""

    def forward(self, x: Tensor) -> Tensor:
        while bool((x > 1).any()):
            x = x / 2
        return x


class ReadsItsFolder(nn.Module):
    """Reads a file that lies beside its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x * len(Path(__file__).with_name("__init__.py").read_text() + "a")
