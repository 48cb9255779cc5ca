"""Recognizes that a process cannot use its device any more, and ends its worker.

A kernel that fails (an index out of range, for example) ends the context of its process
on that device: from then on every call of every model there fails with the same error.
Other processes have contexts of their own. So the worker ends, and the next one has a
new context.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import torch

from tfs.core.error_chain import chain_of
from tfs.core.errors import text_of
from tfs.runtime.guest.fault_text import one_line
from tfs.runtime.guest.worker_ends import LOST_DEVICE

_TORCH_SAYS: Final = ("CUDA error", "CUDA driver error")


def leave_if_device_is_lost(error: BaseException, device: str) -> None:
    """Ends the process if a failed call left it without its device; prints why.

    Args:
        error: The error of the call.
        device: The device of the model.

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
    """Returns the error of a device among an error and those that led to it, or None."""
    for each in chain_of(error):
        if isinstance(each, RuntimeError) and any(
            text in text_of(each) for text in _TORCH_SAYS
        ):
            return each
    return None


def _is_lost(device: str) -> bool:
    """Whether waiting for the device fails too. A launch that is only refused does no harm."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
