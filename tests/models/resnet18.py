"""ResNet-18 with its real depth and a quarter of its width."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Images to logits."""

    def __init__(self, width: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks = []
        channels = width
        for stage in range(4):
            out = width << stage
            blocks += [
                BasicBlock(channels, out, 1 if stage == 0 else 2),
                BasicBlock(out, out, 1),
            ]
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Takes float32 [batch, 3, height, width]."""
        logits: torch.Tensor = self.head(self.blocks(self.stem(image)).mean((2, 3)))
        return logits


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two rows for it."""
    return ResNet18(), {"image": torch.rand(2, 3, 64, 64)}
