"""Spans on their way to a collector, and to the standard output."""

from __future__ import annotations

import gzip
import http.server
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from tfs.core.servable import TraceContext
from tfs.server.system.versions import distribution_version
from tfs.server.tracing.exporters import CollectorExporter, ConsoleExporter
from tfs.server.tracing.otlp import EndedSpan, write_spans
from tfs.server.tracing.settings import CollectorSettings

SPAN = EndedSpan(TraceContext(1, 2), TraceContext(1, 3), "queue", 0.0, 1.5, {"a": "b"})
BODY = write_spans({"service.name": "s"}, distribution_version("tfs"), [SPAN])


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
    settings = CollectorSettings(url=url, headers={"Api-Key": "k"}, is_gzip=is_gzip)
    return CollectorExporter(settings, {"service.name": "s"}, (0.0, 0.0))


@pytest.mark.parametrize("is_gzip", [False, True])
def test_spans_are_posted(collector: Collector, is_gzip: bool) -> None:
    """As the settings say: where to, with which headers, compressed or not."""
    exporter_for(collector.url, is_gzip=is_gzip).export([SPAN])
    ((path, headers, body),) = collector.posted
    assert path == "/v1/traces"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert {name.lower(): value for name, value in headers.items()}["api-key"] == "k"
    assert (gzip.decompress(body) if is_gzip else body) == BODY


def test_a_collector_that_is_busy_is_asked_again(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it takes them, with the same spans."""
    collector.statuses = [503, 429]
    exporter_for(collector.url).export([SPAN])
    assert [body for _, _, body in collector.posted] == [BODY] * 3
    assert not caplog.records


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
        exporter.export([SPAN])
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
        exporter_for(url).export([SPAN])
    assert "refused" in caplog.text


def test_the_console_shows_a_line_for_each_span(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is one JSON document, for programs."""
    ConsoleExporter().export([SPAN, SPAN._replace(parent=None)])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "name": "queue",
        "context": {"trace_id": f"0x{1:032x}", "span_id": f"0x{2:016x}"},
        "parent_id": f"0x{3:016x}",
        "start_time": "1970-01-01T00:00:00+00:00",
        "end_time": "1970-01-01T00:00:01.500000+00:00",
        "status": "UNSET",
        "attributes": {"a": "b"},
        "links": [],
    }
    assert second["parent_id"] is None
