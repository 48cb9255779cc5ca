"""Makes what has ended into spans of OpenTelemetry's SDK, which exports them in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tfs.core.errors import Code
from tfs.core.trace import TraceContext
from tfs.server.system.versions import distribution_version

_OURS: Final = frozenset(
    {Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS, Code.UNAVAILABLE, Code.UNIMPLEMENTED}
)
"""Codes that are a server's fault (semantic conventions of gRPC spans)."""


def console_or_otlp(exporter: str) -> Any:
    """Returns a processor of spans whose thread exports them so.

    Raises:
        ImportError: The extra ``otel`` is not installed.

    """
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    if exporter == "console":
        return BatchSpanProcessor(ConsoleSpanExporter())
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return BatchSpanProcessor(OTLPSpanExporter())


class SpanWriter:
    """Thread-safe.

    Args:
        processor: Takes spans that have ended.

    """

    def __init__(self, processor: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._processor = processor
        self._span: Final = ReadableSpan
        self._api: Final = trace
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count for more.
        own = Resource.create({"service.name": "tfs"})

        class OneResource(Resource):
            """Is equal to itself; the SDK's would be hashed as JSON for every span."""

            __hash__ = object.__hash__
            __eq__ = object.__eq__

        merged = own.merge(OTELResourceDetector().detect())
        self._resource = OneResource(dict(merged.attributes))
        self._scope = InstrumentationScope("tfs", distribution_version("tfs"))
        self._sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)

    def write(
        self,
        own: TraceContext,
        parent: TraceContext | None,
        name: str,
        begun_s: float,
        ended_s: float,
        attributes: Mapping[str, Any],
        links: Sequence[TraceContext] = (),
        code: Code = Code.OK,
        *,
        is_request: bool = False,
    ) -> None:
        """Hands a span on; times are since the epoch."""
        api = self._api
        kind = api.SpanKind.SERVER if is_request else api.SpanKind.INTERNAL
        status = api.StatusCode.ERROR if code in _OURS else api.StatusCode.UNSET
        span = self._span(
            name,
            self._context(own),
            None if parent is None else self._context(parent),
            self._resource,
            attributes,
            links=[api.Link(self._context(each)) for each in links],
            kind=kind,
            status=api.Status(status),
            start_time=int(begun_s * 1e9),
            end_time=int(ended_s * 1e9),
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)

    def _context(self, of: TraceContext) -> Any:
        return self._api.SpanContext(of.trace_id, of.span_id, False, self._sampled)
