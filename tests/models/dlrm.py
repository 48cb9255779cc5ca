"""A recommendation model in the shape of DLRM: embeddings, interactions, perceptrons."""

from __future__ import annotations

import itertools

import torch
from torch import nn


def _perceptron(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Click probability from dense and categorical features."""

    def __init__(
        self,
        num_tables: int = 8,
        num_rows: int = 100,
        width: int = 8,
        num_dense: int = 13,
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(num_rows, width, mode="sum") for _ in range(num_tables)
        )
        self.bottom = _perceptron([num_dense, 32, width])
        pairs = torch.combinations(torch.arange(num_tables + 1))
        self.left: torch.Tensor
        self.right: torch.Tensor
        self.register_buffer("left", pairs[:, 0].contiguous())
        self.register_buffer("right", pairs[:, 1].contiguous())
        self.top = nn.Sequential(
            _perceptron([width + len(pairs), 32]), nn.Linear(32, 1)
        )

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """Takes dense float32 [batch, 13], categories int64 [batch, tables, bag]."""
        bottom = self.bottom(dense)
        embedded = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([bottom, *embedded], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        crossed = products[:, self.left, self.right]
        logits: torch.Tensor = self.top(torch.cat([bottom, crossed], 1))
        return logits.sigmoid().squeeze(1)


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two rows for it."""
    return DLRM(), {
        "dense": torch.rand(2, 13),
        "categories": torch.randint(0, 100, (2, 8, 4)),
    }
