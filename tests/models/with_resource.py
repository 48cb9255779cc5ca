"""A model that reads a text resource of its own package."""

from __future__ import annotations

import torch
from torch import nn


class Vocabulary(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            import torch_package_importer  # type: ignore[import-not-found]
        except ImportError:  # not packaged yet
            words = ["a", "b", "c"]
        else:
            words = torch_package_importer.load_text("model", "words.txt").split()
        return x * len(words)


class Blob(nn.Module):
    """Knows its resources from its package alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import torch_package_importer  # type: ignore[import-not-found, unused-ignore]

        words = torch_package_importer.load_text("model", "words.txt").split()
        return x * len(words) + len(torch_package_importer.load_binary("bin", "data"))
