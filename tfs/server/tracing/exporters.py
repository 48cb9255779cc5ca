"""Where spans go: to a collector, or to the standard output.

Exporters as the SDK's processor of batches wants them: its thread calls ``export``. The
SDK's own exporters take spans of its own: to make and to write those costs five times as
much as everything else of a traced request.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import ssl
import sys
import threading
from base64 import b64decode
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from types import SimpleNamespace
from typing import Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import unquote
from urllib.request import Request, urlopen

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tfs.server.system.versions import distribution_version
from tfs.server.tracing.settings import wrong

log = logging.getLogger(__name__)

_TRANSIENT: Final = (429, 502, 503, 504)
_PAIR: Final = r"[ -+\--<>-~]+=(?:[ -$&-+\--~]|%[2-7][0-9A-Fa-f])*"
_SAMPLED: Final = SimpleNamespace(trace_flags=SimpleNamespace(sampled=True))


class EndedSpan(NamedTuple):
    """A span as OTLP's message, and what the SDK's processor asks of it. Immutable."""

    message: Span
    context: object = _SAMPLED


class CollectorExporter:
    """Posts spans to a collector.

    Args:
        resource: The server's, to which the spans are added.
        request: Where they are posted, and with which headers.
        timeout_s: For each attempt.
        tls: Whom it trusts, and who it is; None for plain text.
        pauses_s: How long it waits before each time that it tries again.

    """

    def __init__(
        self,
        resource: ResourceSpans,
        request: Request,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        pauses_s: Sequence[float] = (1.0, 2.0, 4.0),
    ) -> None:
        self._resource = resource
        self.request = request
        self.timeout_s = timeout_s
        self._tls = tls
        self._pauses_s = pauses_s
        self._is_closing = threading.Event()

    def export(self, spans: Sequence[EndedSpan]) -> None:
        """Sends spans; those that nobody takes are lost, which is logged. Blocks."""
        told = ExportTraceServiceRequest(resource_spans=[self._resource])
        told.resource_spans[0].scope_spans[0].spans.extend(
            each.message for each in spans
        )
        body, url, why = told.SerializeToString(), self.request.full_url, ""
        if self.request.get_header("Content-encoding") == "gzip":
            body = gzip.compress(body, 1)
        for pause_s in (*self._pauses_s, 0.0):
            # Each time another: a proxy's way stays in a request that took it.
            request = Request(url, body, self.request.headers)
            try:
                urlopen(request, timeout=self.timeout_s, context=self._tls).close()
                return
            except HTTPError as error:
                error.close()
                why = str(error)
                if error.code not in _TRANSIENT:
                    break
            except (OSError, HTTPException) as error:
                why = str(error)
            if self._is_closing.wait(pause_s):
                break
        log.warning("event=spans_lost num=%d url=%s why=%r", len(spans), url, why)

    def shutdown(self) -> None:
        """Lets nothing be tried again. Thread-safe; idempotent."""
        self._is_closing.set()


class ConsoleExporter:
    """Prints a line of OTLP's JSON for each span."""

    def export(self, spans: Sequence[EndedSpan]) -> None:
        """Prints spans."""
        for span in spans:
            document = MessageToDict(span.message)
            for each in (document, *document.get("links", ())):
                for key in each.keys() & {"traceId", "spanId", "parentSpanId"}:
                    each[key] = b64decode(each[key]).hex()
            sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()

    def shutdown(self) -> None:
        """There is nothing to end."""


def collector_exporter(
    environment: Mapping[str, str], resource: ResourceSpans
) -> CollectorExporter:
    """Returns what posts to the collector that the variables name; here by default.

    Raises:
        InvalidArgument: One has a value that means nothing here; names both.
        OSError: A certificate cannot be used.

    """

    def read(what: str, default: str, form: str = ".*", expected: str = "") -> str:
        for name in (f"OTEL_EXPORTER_OTLP_TRACES_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
            value = environment.get(name, "").strip()
            if value:
                if not re.fullmatch(form, value):
                    told = "..." if what == "HEADERS" else value  # it may be a secret
                    raise wrong(name, told, expected)
                return value
        return default

    read("PROTOCOL", "", "http/protobuf", "http/protobuf")
    here, form = "http://localhost:4318", "https?://[^/]+.*"
    url = read("ENDPOINT", here, form, "http://... or https://...")
    if not environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip():
        url = f"{url.removesuffix('/')}/v1/traces"
    headers = {
        "Content-Type": "application/x-protobuf",
        "User-Agent": f"tfs/{distribution_version('tfs')}",
    }
    if read("COMPRESSION", "none", "gzip|none", "gzip or none") == "gzip":
        headers["Content-Encoding"] = "gzip"
    pairs = read("HEADERS", "", f"{_PAIR}(?:,{_PAIR})*,?", "name=value,... in ASCII")
    for pair in filter(None, pairs.split(",")):
        name, _, value = pair.partition("=")
        headers[name.strip()] = unquote(value).strip()
    tls = None
    if url.startswith("https:"):
        tls = ssl.create_default_context(cafile=read("CERTIFICATE", "") or None)
        if certificate := read("CLIENT_CERTIFICATE", ""):
            tls.load_cert_chain(certificate, read("CLIENT_KEY", "") or None)
    timeout_s = float(read("TIMEOUT", "10", r"\d+(\.\d*)?", "seconds"))
    return CollectorExporter(resource, Request(url, headers=headers), timeout_s, tls)
