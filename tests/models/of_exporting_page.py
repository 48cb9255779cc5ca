"""The models that docs/exporting.md takes for granted."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 10)

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        vector: torch.Tensor = self.body(images)
        return vector

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.embed(images).softmax(1)


class Prices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(100, 4, padding_idx=0)
        self.last = nn.Linear(6, 1)

    def forward(self, house: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        price: torch.Tensor = self.last(torch.cat([house, self.words(words)], 1))
        return price
