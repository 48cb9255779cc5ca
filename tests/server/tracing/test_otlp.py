"""Spans as OTLP's messages, read by its own protobuf."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tfs.core.errors import Code
from tfs.core.servable import TraceContext
from tfs.server.tracing.otlp import EndedSpan, write_spans

REQUEST, BATCH = TraceContext((7 << 64) | 1, 2), TraceContext((7 << 64) | 1, 3)


def test_spans_are_written_as_otlp_says() -> None:
    """With the server's attributes; ids in full, times in nanoseconds, and no unknown field."""
    attributes: dict[str, str | int] = {"tfs.model": "mödel", "tfs.version": 300}
    spans = [
        EndedSpan(REQUEST, None, "Predict", 1.5, 2.25, attributes, is_request=True),
        EndedSpan(BATCH, REQUEST, "batch", 1.75, 2.0, {}, [REQUEST], Code.INTERNAL),
        EndedSpan(BATCH, REQUEST, "batch", 1.75, 2.0, {}, (), Code.NOT_FOUND),
    ]
    read = ExportTraceServiceRequest.FromString(
        write_spans({"service.name": "tfs"}, "1.2", spans)
    )
    expected = ExportTraceServiceRequest()
    of_server = expected.resource_spans.add()
    named = of_server.resource.attributes.add(key="service.name")
    named.value.string_value = "tfs"
    scoped = of_server.scope_spans.add()
    scoped.scope.name, scoped.scope.version = "tfs", "1.2"
    trace_id = bytes(7) + b"\x07" + bytes(7) + b"\x01"
    request_id, batch_id = bytes(7) + b"\x02", bytes(7) + b"\x03"
    request = scoped.spans.add(
        trace_id=trace_id,
        span_id=request_id,
        name="Predict",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=1_500_000_000,
        end_time_unix_nano=2_250_000_000,
    )
    request.attributes.add(key="tfs.model").value.string_value = "mödel"
    request.attributes.add(key="tfs.version").value.int_value = 300
    for has_failed in (True, False):
        batch = scoped.spans.add(
            trace_id=trace_id,
            span_id=batch_id,
            parent_span_id=request_id,
            name="batch",
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=1_750_000_000,
            end_time_unix_nano=2_000_000_000,
        )
        if has_failed:
            batch.links.add(trace_id=trace_id, span_id=request_id)
            batch.status.code = Status.STATUS_CODE_ERROR
    assert read == expected
