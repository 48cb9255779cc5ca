"""What models make of their modules at run time."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import torch


def copies_of(
    module: torch.nn.Module, example: torch.Tensor
) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Returns the module pickled, saved, scripted and traced, by what was done."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return {
        "pickled": pickle.loads(pickle.dumps(module)),
        "saved": torch.load(file, weights_only=False),
        "scripted": torch.jit.script(module),
        "traced": torch.jit.trace(module, example),  # type: ignore[no-untyped-call]
    }
