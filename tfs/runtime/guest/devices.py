"""Devices that models compute on, and their faults.

A kernel that fails (an index out of range, for example) ends the context of its process
on that device: from then on every call of every model there fails with the same error.
Other processes have contexts of their own. So the worker ends, and the next one has a
new context.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

import torch

from tfs.core.errors import FailedPrecondition, chain_of, text_of
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.worker_options import LOST_DEVICE

_FIRST = ("cpu", "cuda", "cuda:0")
_NONE: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


def current_device(device: str) -> contextlib.AbstractContextManager[object]:
    """Makes ``device`` the calling thread's current device within the block.

    Each thread begins with the first device. So a model on another device that makes a
    tensor on "cuda", or has kernels of its own, would use the wrong one. Does nothing
    for the first device.
    """
    return _NONE if device in _FIRST else torch.cuda.device(device)


def check_device(device: str, who: str) -> None:
    """Checks that torch can compute on ``device``.

    Raises:
        FailedPrecondition: It cannot; names the version.

    """
    if device == "cpu":
        return
    # A torch that was built without CUDA counts no devices.
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (torch.device(device).index or 0) < num_devices:
        return
    found = f"{num_devices} of them" if num_devices else "none"
    raise FailedPrecondition(
        f"{who} asks for device {device!r}, and torch {torch.__version__} sees {found}; "
        "name another in its runtime config, or serve it where there is one"
    )


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
