"""Puts an exception into words, for a message to people."""

from __future__ import annotations

import re
from typing import Final

from tfs.core.errors import text_of

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
