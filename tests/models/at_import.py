"""Modules whose files read or change the process they are imported in."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

IS_PACKAGED = __name__.startswith("<torch_package_")
SCALE = float(sys.argv[-1]) if sys.argv[-1].startswith("3.") else 1.0


class ScaledByOption(nn.Module):
    """Is scaled by the last word of the command line."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE


class Ends(nn.Module):
    """Ends the process of whoever calls it from an archive."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if IS_PACKAGED and self.how == "exit":
            os._exit(3)
        if IS_PACKAGED and self.how == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        return x + 1
