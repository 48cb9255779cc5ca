"""ResNet-18 (He et al., 2016) in plain torch, for inference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two convolutions of 3x3 beside a shortcut."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(num_out)
        self.second = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(num_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False),
                nn.BatchNorm2d(num_out),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Classifies x: float32 [batch, 3, 224, 224] into float32 [batch, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = (64, 128, 256, 512)
        self.blocks = nn.Sequential(
            *(
                block
                for num_in, num_out in zip((64, *widths), widths, strict=False)
                for block in (
                    BasicBlock(num_in, num_out, 1 if num_out == 64 else 2),
                    BasicBlock(num_out, num_out, 1),
                )
            )
        )
        self.head = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.stem(x)).mean((2, 3))
        output: torch.Tensor = self.head(y)
        return output
