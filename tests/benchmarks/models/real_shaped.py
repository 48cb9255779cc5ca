"""Shapes that no other model under measurement has: wide, short numbers, tables, sound."""

from __future__ import annotations

import torch
from torch import nn


class Wide(nn.Module):
    """A perceptron of 25 million weights: x [batch, 1024] into [batch, 1024]."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        sizes = (1024, 4096, 4096, 1024)
        layers: list[nn.Module] = []
        for index in range(3):
            layers += [nn.Linear(sizes[index], sizes[index + 1]), nn.GELU()]
        self.layers = nn.Sequential(*layers).to(dtype)
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes float32, whatever it computes in."""
        output: torch.Tensor = self.layers(x.to(self.dtype)).float()
        return output


class Words(nn.Module):
    """Classifies texts by a table of 200,000 words: words int64 [batch, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(200_000, 128, mode="mean")
        self.head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 20))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.table(words))
        return output


class Sound(nn.Module):
    """Labels a second of sound: sound float32 [batch, 16000] into [batch, 35]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = (1, 64, 128, 256, 256)
        for index in range(4):
            layers += [
                nn.Conv1d(widths[index], widths[index + 1], 9, stride=2, padding=4),
                nn.BatchNorm1d(widths[index + 1]),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(256, 35)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.layers(sound[:, None]).mean(2))
        return output
