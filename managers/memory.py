"""Gives freed memory back to the system after an unload."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def release_to_system() -> None:
    """Collects cycles and trims the allocator's heap. Blocks; manager threads only.

    Packages hold their modules in reference cycles, and glibc keeps freed pages: both
    would count as the version's memory long after it is gone.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc: nothing to trim
        ctypes.CDLL(None).malloc_trim(0)
