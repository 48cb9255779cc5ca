"""W3C's ``traceparent``: which trace a caller's request belongs to. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tfs.core.call import Metadata
from tfs.core.servable import TraceContext

HEADER: Final = "traceparent"

# Later versions may go on behind the flags; ff is none.
_FORM: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)


class Parent(NamedTuple):
    """The caller's span, and whether it is traced."""

    context: TraceContext
    is_sampled: bool


def parent_of(metadata: Metadata) -> Parent | None:
    """Returns the caller's span; None if it names none that is valid."""
    value = next((value for key, value in metadata if key == HEADER), None)
    found = _FORM.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    context = TraceContext(int(found[1], 16), int(found[2], 16))
    if not context.trace_id or not context.span_id:
        return None
    return Parent(context, bool(int(found[3], 16) & 1))
