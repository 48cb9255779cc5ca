"""A device that a process cannot use any more: what says so, and how its worker ends.

A kernel that fails (an index out of range, say) ends the context of its process on that
device: every later call there fails with the same error, of whichever model. Other
processes have contexts of their own. So a worker ends, and the next one is as new.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import torch

from tfs.core.errors import text_of
from tfs.runtime.guest.fault_text import one_line
from tfs.runtime.guest.worker_ends import LOST_DEVICE

_TORCH_SAYS: Final = ("CUDA error", "CUDA driver error")


def leave_if_device_is_lost(error: BaseException, device: str) -> None:
    """Ends the process if a failed call left it without its device; prints why.

    Args:
        error: The error of the call.
        device: The model's.

    """
    if device == "cpu":
        return
    fault = _device_fault(error)
    if fault is None or not _is_lost(device):
        return
    text = f"process {os.getpid()} has lost its device: {one_line(fault)}"
    print(text, file=sys.stderr, flush=True)
    os._exit(LOST_DEVICE)


def _device_fault(error: BaseException) -> BaseException | None:
    """Returns what a device said, of an error and those that led to it."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return None
        if isinstance(seen, RuntimeError) and any(
            text in text_of(seen) for text in _TORCH_SAYS
        ):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _is_lost(device: str) -> bool:
    """Whether waiting for the device fails as well: a refused launch does no harm."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
