"""Gives the freed memory of an interpreter's process back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc

from tfs.runtime.guest.guest_model import give_device_memory_back

_libc = ctypes.CDLL(None)


def give_back() -> None:
    """Gives memory that nobody holds any more back to system and device. Blocks."""
    gc.collect()
    give_device_memory_back()
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        _libc.malloc_trim(0)
