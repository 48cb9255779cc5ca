"""The modules of the models that both servers serve."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Digits(nn.Module):
    """A classifier with a second entry."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.out(self.embed(x)), 1)

    def embed(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(x))


class Prices(nn.Module):
    """Regresses on a few numbers and an optional one."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, rooms: Tensor, bias: Tensor) -> Tensor:
        price: Tensor = self.out(rooms) + bias
        return price


class Tokens(nn.Module):
    """bfloat16, of any length, padded, with a mask and nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4, dtype=torch.bfloat16)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, object]:
        rows = self.table(ids.clamp(0, 49)) * mask[:, :, None].bool()
        return {"sum": rows.sum(1), "parts": [rows.amax(1), mask.sum(1)]}


class Whole(nn.Module):
    """Not batched: answers of the values, whatever dimension they lie in."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"order": torch.argsort(x, stable=True), "total": x.sum()}


class Mixing(nn.Module):
    """Rows influence each other, so they are never joined."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)
