"""Checks the device that a model asks for, and makes it a thread's current device."""

from __future__ import annotations

import contextlib

import torch

from tfs.core.errors import FailedPrecondition

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
