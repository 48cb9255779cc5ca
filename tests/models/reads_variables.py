"""A model that takes settings from the environment: at its import, and in each call."""

from __future__ import annotations

import os

import torch
from torch import nn

SCALE = float(os.environ.get("TFS_TEST_SCALE", "2"))


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE + float(os.getenv("TFS_TEST_SHIFT", "0"))
