"""A model that needs a file of its author's machine."""

from __future__ import annotations

import torch


class NeedsFile(torch.nn.Module):
    """Adds one, if there is a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns ``x`` and one."""
        with open(self.path, encoding="utf-8"):
            return x + 1
