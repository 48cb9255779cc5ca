"""A small convolutional classifier, the shape of the demo's."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class DigitClassifier(nn.Module):
    """Eight by eight grey images to probabilities of ten classes."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8 * 4 * 4, num_classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Takes pixels float32 [batch, 64]; gives float32 [batch, classes]."""
        image = pixels.view(-1, 1, 8, 8) / 16
        hidden = F.max_pool2d(F.relu(self.norm(self.conv(image))), 2)
        logits: torch.Tensor = self.head(self.dropout(hidden.flatten(1)))
        return logits.softmax(1)
