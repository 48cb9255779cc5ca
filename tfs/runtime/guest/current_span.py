"""Makes a request's span the current one while its model runs, for OpenTelemetry.

A model that makes spans of its own, or logs the trace's id, finds the interpreter's span
by ``opentelemetry.trace.get_current_span()``. Where the API is not installed, nothing
looks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfs.core.servable import TraceContext


@contextlib.contextmanager
def current_span(context: TraceContext) -> Iterator[None]:
    """Makes a span of another process, or of the server, the current one of this thread."""
    try:
        from opentelemetry import context as contexts
        from opentelemetry import trace
    except ImportError:
        yield
        return
    span = trace.NonRecordingSpan(
        trace.SpanContext(
            context.trace_id,
            context.span_id,
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
    )
    token = contexts.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        contexts.detach(token)
