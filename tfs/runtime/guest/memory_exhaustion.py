"""Recognizes errors that mean that a model ran out of memory."""

from __future__ import annotations

import errno
from typing import Final

from tfs.core.error_chain import chain_of
from tfs.core.errors import text_of

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
