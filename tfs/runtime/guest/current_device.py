"""The device on which a thread's CUDA calls happen that name none."""

from __future__ import annotations

import contextlib

import torch

_FIRST = ("cpu", "cuda", "cuda:0")
_NONE: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


def current_device(device: str) -> contextlib.AbstractContextManager[object]:
    """Makes ``device`` the calling thread's, and takes it back.

    Each thread begins with the first: a model on another that makes a tensor on "cuda",
    or has kernels of its own, would use the wrong one. Does nothing for the first.
    """
    return _NONE if device in _FIRST else torch.cuda.device(device)
