"""The model that costs nothing, so that what is measured is the serving."""

from __future__ import annotations

import torch


class Identity(torch.nn.Module):
    """Returns float32 `x` [batch, …] as `y`."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x}
