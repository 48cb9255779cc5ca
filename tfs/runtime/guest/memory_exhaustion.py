"""Recognizes errors that mean that a model ran out of memory."""

from __future__ import annotations

import errno
from typing import Final

from tfs.core.errors import text_of

_TORCH_SAYS: Final = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",  # of a device
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is that there was no memory."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return False
        if isinstance(seen, MemoryError):
            return True
        if isinstance(seen, OSError) and seen.errno == errno.ENOMEM:
            return True
        if isinstance(seen, RuntimeError) and any(
            text in text_of(seen) for text in _TORCH_SAYS
        ):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
