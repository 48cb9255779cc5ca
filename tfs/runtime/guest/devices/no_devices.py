"""Keeps torch from looking for CUDA devices in a process that is yet to be forked.

A process in which CUDA was asked for anything, be it how many devices there are, cannot
fork others that use it: torch notes it, and they fail with "Cannot re-initialize CUDA
in forked subprocess".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def no_devices() -> Iterator[None]:
    """Has torch say that there are no CUDA devices, without asking the driver.

    For code that is called before a fork and would ask. Not for imports: what a module
    finds out when it is imported, it may remember.
    """
    cuda = vars(torch.cuda)
    replaced = {name: cuda[name] for name in ("is_available", "device_count")}
    cuda.update(is_available=lambda: False, device_count=lambda: 0)
    try:
        yield
    finally:
        cuda.update(replaced)
