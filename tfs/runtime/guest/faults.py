"""What failures of a model mean, in words for its callers, and which of them end a worker."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import Final

import torch

from tfs.core.errors import chain_of, text_of
from tfs.runtime.guest.worker_options import LOST_DEVICE

_MISSING_OPERATOR: Final = re.compile(
    r"deserializing node Node\(target='torch\.ops\.(\w+)\.(\w+)"
    r"|Unknown builtin op: (\w+)::(\w+)"
)


def one_line(error: BaseException) -> str:
    """Returns the exception's type and the start of its text, for a message."""
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def what_is_missing(error: BaseException) -> str:
    """Returns the start of a message if torch lacks an operator that a graph calls."""
    found = _MISSING_OPERATOR.search(text_of(error))
    if found is None:
        return ""
    name = "::".join(part for part in found.groups() if part)
    return (
        f"no operator {name} here; what an author's program registers is not in a "
        "graph: save the model as torch_package, which brings its code. "
    )


_TORCH_SAYS: Final = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",  # of a device
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is that there was no memory."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (
            isinstance(each, RuntimeError)
            and any(text in text_of(each) for text in _TORCH_SAYS)
        )
        for each in chain_of(error)
    )


_DEVICE_SAYS: Final = ("CUDA error", "CUDA driver error")


def leave_if_device_is_lost(error: BaseException, device: str) -> None:
    """Ends the process if a failed call left it without its device; prints why.

    A kernel that fails (an index out of range, for example) ends the context of its process
    on that device: from then on every call of every model there fails with the same error.
    Other processes have contexts of their own, and so has the next worker.

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
            text in text_of(each) for text in _DEVICE_SAYS
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
