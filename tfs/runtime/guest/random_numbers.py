"""Random numbers of one process."""

from __future__ import annotations

import importlib
import os
import random
import sys
from typing import Any

import torch

_repeats = False  # whether the streams were last set by a seed that somebody chose


def random_repeats() -> bool:
    """Tells whether this process draws the same numbers each time.

    So it is while a version is measured, and never while it serves.
    """
    return _repeats


def seed_random(seed: int | None = None) -> None:
    """Sets the streams of torch, of Python and, where it is imported, of numpy.

    None gives this process numbers of its own; otherwise a fork repeats its parent's.
    Generators that a model holds belong to the model and stay as they are.
    """
    global _repeats
    is_asked_for = _repeats = seed is not None
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little")
    random.seed(seed)
    if is_asked_for and "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # if imported later, it is unseeded
    numpys: Any = sys.modules.get("numpy.random")
    if numpys is not None:
        numpys.seed(seed % 2**32)
    if any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")):
        torch.manual_seed(seed)
    else:
        # This does the same for the processor alone. Looking for devices that do not
        # exist would write to 450 shared pages: 2 ms at each fork.
        torch.default_generator.manual_seed(seed)
