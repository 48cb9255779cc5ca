"""U-Net: a contracting and an expanding path with connections between them."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F


class DoubleConvolution(nn.Sequential):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Images to one map of logits per class, of the same size."""

    def __init__(self, num_classes: int = 3, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.first = DoubleConvolution(1, width)
        self.down = nn.ModuleList(
            DoubleConvolution(a, b) for a, b in itertools.pairwise(widths)
        )
        backwards = widths[::-1]
        self.raise_size = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, 2) for a, b in itertools.pairwise(backwards)
        )
        self.up = nn.ModuleList(DoubleConvolution(2 * b, b) for b in backwards[1:])
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Takes float32 [batch, 1, height, width], both multiples of 8."""
        x = self.first(image)
        skipped = []
        for down in self.down:
            skipped.append(x)
            x = down(F.max_pool2d(x, 2))
        for raise_size, up in zip(self.raise_size, self.up, strict=True):
            x = up(torch.cat([skipped.pop(), raise_size(x)], 1))
        logits: torch.Tensor = self.head(x)
        return logits


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two rows for it."""
    return UNet(), {"image": torch.rand(2, 1, 32, 32)}
