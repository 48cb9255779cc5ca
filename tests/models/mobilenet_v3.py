"""MobileNetV3 small: inverted residuals, squeeze-and-excitation, hard swish."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Block:
    """One inverted residual: kernel, expanded and output channels, options, stride."""

    kernel: int
    expanded: int
    channels: int
    squeezes: bool
    swishes: bool
    stride: int


BLOCKS = (
    Block(3, 16, 16, True, False, 2),
    Block(3, 72, 24, False, False, 2),
    Block(3, 88, 24, False, False, 1),
    Block(5, 96, 40, True, True, 2),
    Block(5, 240, 40, True, True, 1),
    Block(5, 120, 48, True, True, 1),
    Block(5, 288, 96, True, True, 2),
    Block(5, 576, 96, True, True, 1),
)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, channels // 4)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.excite(scale))


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        activation = nn.Hardswish if block.swishes else nn.ReLU
        layers: list[nn.Module] = []
        if block.expanded != channels:
            layers += _convolved(channels, block.expanded, 1, 1, 1)
            layers.append(activation())
        layers += _convolved(
            block.expanded, block.expanded, block.kernel, block.stride, block.expanded
        )
        layers.append(activation())
        if block.squeezes:
            layers.append(SqueezeExcite(block.expanded))
        layers += _convolved(block.expanded, block.channels, 1, 1, 1)
        self.layers = nn.Sequential(*layers)
        self.is_residual = block.stride == 1 and channels == block.channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return x + y if self.is_residual else y


def _convolved(
    channels: int, out: int, kernel: int, stride: int, groups: int
) -> list[nn.Module]:
    convolution = nn.Conv2d(
        channels, out, kernel, stride, kernel // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(out)]


class MobileNetV3(nn.Module):
    """Images to logits."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_convolved(3, 16, 3, 2, 1), nn.Hardswish())
        channels = 16
        blocks = []
        for block in BLOCKS:
            blocks.append(InvertedResidual(channels, block))
            channels = block.channels
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(*_convolved(channels, 576, 1, 1, 1), nn.Hardswish())
        self.head = nn.Sequential(
            nn.Linear(576, 128),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(128, num_classes),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Takes float32 [batch, 3, height, width]."""
        x = self.last(self.blocks(self.stem(image))).mean((2, 3))
        logits: torch.Tensor = self.head(x)
        return logits


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two rows for it."""
    return MobileNetV3(), {"image": torch.rand(2, 3, 64, 64)}
