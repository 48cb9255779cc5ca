"""Keeps torch from looking for CUDA devices in a process that will be forked.

A process in which CUDA was asked for anything, even for the number of devices, cannot
fork processes that use CUDA: torch remembers it, and they fail with "Cannot
re-initialize CUDA in forked subprocess".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def no_devices() -> Iterator[None]:
    """Makes torch say that there are no CUDA devices, without asking the driver.

    For code that runs before a fork and would ask. Not for imports, because a module
    may remember what it found when it was imported.
    """
    cuda = vars(torch.cuda)
    replaced = {name: cuda[name] for name in ("is_available", "device_count")}
    cuda.update(is_available=lambda: False, device_count=lambda: 0)
    try:
        yield
    finally:
        cuda.update(replaced)
