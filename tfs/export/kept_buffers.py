"""Keeps what calls of a module do to its state out of what is saved of it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy


class KeptBuffers:
    """A module's buffers as they were: running sums, caches, counters.

    Holds a copy of each. Confined to one thread.
    """

    def __init__(self, module: nn.Module) -> None:
        self._kept = [
            (owner, name, buffer, buffer.detach().clone(), _version(buffer))
            for owner in module.modules()
            for name, buffer in owner.named_buffers(
                recurse=False, remove_duplicate=False
            )
            if not is_lazy(buffer)
        ]

    def restore(self) -> None:
        """Undoes what was written to them, and their replacement by other tensors."""
        for owner, name, buffer, value, version in self._kept:
            if version is None or _version(buffer) != version:
                with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                    buffer.copy_(value)
            if getattr(owner, name, None) is not buffer:
                setattr(owner, name, buffer)
        self._kept = [
            (owner, name, buffer, value, _version(buffer))
            for owner, name, buffer, value, _ in self._kept
        ]


def _version(tensor: torch.Tensor) -> int | None:
    """Returns how often it was written to, None if nobody counts."""
    return None if tensor.is_inference() else tensor._version
