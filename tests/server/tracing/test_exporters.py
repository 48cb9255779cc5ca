"""Spans on their way to a collector, and to the standard output."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import logging
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tfs.core.errors import InvalidArgument
from tfs.server.tracing import exporters
from tfs.server.tracing.exporters import (
    CollectorExporter,
    ConsoleExporter,
    EndedSpan,
    collector_exporter,
)

SPAN = Span(
    trace_id=bytes(15) + b"\1",
    span_id=bytes(7) + b"\2",
    parent_span_id=bytes(7) + b"\3",
    name="queue",
    end_time_unix_nano=1_500_000_000,
)
SPAN.links.add(trace_id=SPAN.trace_id, span_id=SPAN.parent_span_id)
RESOURCE = ResourceSpans(
    scope_spans=[ScopeSpans(scope=InstrumentationScope(name="tfs"))]
)


class Collector(http.server.ThreadingHTTPServer):
    """Answers with the given statuses, then with 200.

    Attributes:
        statuses: What comes next.
        posted: Path, headers and body of each request.

    """

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, dict(self.headers), body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def exporter_for(url: str, *, is_gzip: bool = False) -> CollectorExporter:
    headers = {"Api-Key": "k", **({"Content-Encoding": "gzip"} if is_gzip else {})}
    request = urllib.request.Request(url, headers=headers)
    return CollectorExporter(RESOURCE, request, 10.0, None, (0.0, 0.0))


@pytest.mark.parametrize("is_gzip", [False, True])
def test_spans_are_posted(collector: Collector, is_gzip: bool) -> None:
    """As the settings say: where to, with which headers, compressed or not."""
    exporter = exporter_for(collector.url, is_gzip=is_gzip)
    for num in (1, 2):
        exporter.export([EndedSpan(SPAN)] * num)
        path, headers, body = collector.posted.pop()
        assert path == "/v1/traces"
        named = {name.lower(): value for name, value in headers.items()}
        assert named["api-key"] == "k"
        told = ExportTraceServiceRequest.FromString(
            gzip.decompress(body) if is_gzip else body
        )
        (of_server,) = told.resource_spans
        (scoped,) = of_server.scope_spans
        assert scoped.scope.name == "tfs"
        assert list(scoped.spans) == [SPAN] * num


def test_a_collector_that_is_busy_is_asked_again(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it takes them, with the same spans."""
    collector.statuses = [503, 429]
    exporter_for(collector.url).export([EndedSpan(SPAN)])
    bodies = [body for _, _, body in collector.posted]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1
    assert not caplog.records


def test_a_proxy_is_asked_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was asked for at first, on a tunnel of TLS."""
    asked: list[tuple[str, str | None]] = []

    def through_proxy(request: Any, **_: object) -> io.BytesIO:
        asked.append((request.type, request.selector))
        request.set_proxy("127.0.0.1:3128", "http")  # as urllib's handler does
        return io.BytesIO()

    monkeypatch.setattr(exporters, "urlopen", through_proxy)
    exporter = exporter_for("https://collector/v1/traces")
    for _ in range(3):
        exporter.export([EndedSpan(SPAN)])
    assert asked == [("https", "/v1/traces")] * 3


@pytest.mark.parametrize(
    ("statuses", "is_closing", "num_posted"),
    [([400], False, 1), ([503] * 3, False, 3), ([503], True, 1)],
)
def test_spans_that_nobody_takes_are_lost(
    collector: Collector,
    caplog: pytest.LogCaptureFixture,
    statuses: list[int],
    is_closing: bool,
    num_posted: int,
) -> None:
    """That is logged once; a server that ends does not try again."""
    collector.statuses = statuses
    exporter = exporter_for(collector.url)
    if is_closing:
        exporter.shutdown()
    with caplog.at_level(logging.WARNING):
        exporter.export([EndedSpan(SPAN)])
    assert len(collector.posted) == num_posted
    (record,) = caplog.records
    assert "event=spans_lost num=1" in record.getMessage()


def test_a_collector_that_is_not_there_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The exporting thread goes on."""
    with Collector() as gone:
        url = gone.url
    with caplog.at_level(logging.WARNING):
        exporter_for(url).export([EndedSpan(SPAN)])
    assert "refused" in caplog.text


def test_the_console_shows_a_line_for_each_span(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is one JSON document, for programs, as OTLP's JSON is."""
    other = Span(name="Predict", span_id=SPAN.span_id)
    ConsoleExporter().export([EndedSpan(SPAN), EndedSpan(other)])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "name": "queue",
        "traceId": f"{1:032x}",
        "spanId": f"{2:016x}",
        "parentSpanId": f"{3:016x}",
        "endTimeUnixNano": "1500000000",
        "links": [{"traceId": f"{1:032x}", "spanId": f"{3:016x}"}],
    }
    assert "parentSpanId" not in second


@pytest.mark.parametrize(
    ("environment", "url", "timeout_s", "headers"),
    [
        ({}, "http://localhost:4318/v1/traces", 10.0, {}),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "https://h/otlp/",
                "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b=,x = y",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            },
            "https://h/otlp/v1/traces",
            2.5,
            {"Api-key": "a b=", "X": "y", "Content-encoding": "gzip"},
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://all",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces/here",
            },
            "http://traces/here",
            10.0,
            {},
        ),
    ],
)
def test_the_standard_variables_name_the_collector(
    environment: dict[str, str], url: str, timeout_s: float, headers: dict[str, str]
) -> None:
    """Those for traces alone count for more, and name the whole path."""
    found = collector_exporter(environment, RESOURCE)
    assert (found.request.full_url, found.timeout_s) == (url, timeout_s)
    own = {"Content-type", "User-agent"}
    given = {each: found.request.get_header(each) for each in found.request.headers}
    assert {each: given[each] for each in given.keys() - own} == headers


def test_certificates_are_read_at_once() -> None:
    """Of the collector, and of the server; a file that is not there is told as it starts."""
    for what in ("CERTIFICATE", "CLIENT_CERTIFICATE"):
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://h",
            f"OTEL_EXPORTER_OTLP_{what}": "absent.pem",
        }
        with pytest.raises(OSError, match="No such file"):
            collector_exporter(environment, RESOURCE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "file:///etc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
    ],
)
def test_a_value_that_means_nothing_here_is_named(name: str, value: str) -> None:
    """So is what would be right."""
    with pytest.raises(InvalidArgument, match=f"{name}={value}: expected "):
        collector_exporter({name: value}, RESOURCE)


@pytest.mark.parametrize("value", ["secret", "key=secret%0Ax", "key=secr\u00e9t"])
def test_headers_are_named_without_what_they_say(value: str) -> None:
    """They have the keys of collectors, and what is wrong with them goes to the log."""
    with pytest.raises(InvalidArgument, match=r"HEADERS=\.\.\.: expected ") as caught:
        collector_exporter({"OTEL_EXPORTER_OTLP_HEADERS": value}, RESOURCE)
    assert "secr" not in str(caught.value)
