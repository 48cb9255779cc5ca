"""Random numbers of one process."""

from __future__ import annotations

import os
import random

import torch


def seed_random() -> None:
    """Gives this process random numbers of its own: a fork repeats its parent's."""
    seed = int.from_bytes(os.urandom(8), "little")
    random.seed(seed)
    if any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")):
        torch.manual_seed(seed)
    else:
        # The same for the processor. Asking for devices that there are not would make
        # 450 pages this process's own: 2 ms, at each fork.
        torch.default_generator.manual_seed(seed)
