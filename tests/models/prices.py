"""Stands for the model of the quick start, with an answer that is known."""

from __future__ import annotations

from torch import Tensor, nn


class Prices(nn.Module):
    """The price of a house from its size and age."""

    def forward(self, house: Tensor) -> dict[str, Tensor]:
        return {"price": 3 * house[:, :1] - house[:, 1:] + 1}
