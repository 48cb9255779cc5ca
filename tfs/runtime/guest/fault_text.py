"""An exception in a message for people."""

from __future__ import annotations

from tfs.core.errors import text_of


def one_line(error: BaseException) -> str:
    """Returns the exception's type and the start of its text, for a message."""
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
