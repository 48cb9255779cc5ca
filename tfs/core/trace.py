"""The spans of a sampled request, as those see them who have it computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tfs.core.errors import Code
from tfs.core.servable_id import ServableId


class TraceContext(NamedTuple):
    """What W3C's ``traceparent`` names: a span of a trace."""

    trace_id: int
    span_id: int


class Trace(Protocol):
    """Spans of one request, or of a batch of several. Thread-safe; quick; never raises."""

    @property
    def context(self) -> TraceContext:
        """The innermost span that has begun."""
        ...

    def join(self, others: Sequence[Trace], num_rows: int, begun_s: float) -> Trace:
        """Begins the span of a batch that computes this request and the others."""
        ...

    def compute(self, who: str, now_s: float) -> None:
        """Begins the span of the interpreter; the first call counts."""
        ...

    def end(self, code: Code, begun_s: float, done_s: float, now_s: float) -> None:
        """Ends all its spans; the first call counts.

        Args:
            code: How the request or the batch ended.
            begun_s: When the handler began, monotonic.
            done_s: When the outputs were there.
            now_s: When the answer was handed over.

        """
        ...

    def name(self, servable_id: ServableId, signature: str) -> None:
        """Notes which version answers, and by which signature."""
        ...
