"""Where spans go: to a collector, or to the standard output.

Exporters as the SDK's processor of batches wants them: its thread calls ``export``.
"""

from __future__ import annotations

import gzip
import json
import logging
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tfs.core.servable import TraceContext
from tfs.server.system.versions import distribution_version
from tfs.server.tracing.otlp import EndedSpan, write_spans
from tfs.server.tracing.settings import CollectorSettings

log = logging.getLogger(__name__)

_TRANSIENT: Final = (429, 502, 503, 504)


class CollectorExporter:
    """Posts spans to a collector.

    Args:
        settings: Which collector, and how.
        resource: Attributes of the server.
        pauses_s: How long it waits before each time that it tries again.

    Raises:
        OSError: A certificate cannot be used.

    """

    def __init__(
        self,
        settings: CollectorSettings,
        resource: Mapping[str, Any],
        pauses_s: Sequence[float] = (1.0, 2.0, 4.0),
    ) -> None:
        self._settings = settings
        self._resource = resource
        self._version = distribution_version("tfs")
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "User-Agent": f"tfs/{self._version}",
            **({"Content-Encoding": "gzip"} if settings.is_gzip else {}),
            **settings.headers,
        }
        self._tls: ssl.SSLContext | None = None
        if settings.url.startswith("https:"):
            self._tls = ssl.create_default_context(cafile=settings.ca_file or None)
        if self._tls is not None and settings.client_certificate_file:
            self._tls.load_cert_chain(
                settings.client_certificate_file, settings.client_key_file or None
            )
        self._pauses_s = pauses_s
        self._is_closing = threading.Event()

    def export(self, spans: Sequence[EndedSpan]) -> None:
        """Sends spans; those that nobody takes are lost, which is logged. Blocks."""
        settings = self._settings
        body = write_spans(self._resource, self._version, spans)
        if settings.is_gzip:
            body = gzip.compress(body, 1)
        request = Request(settings.url, body, self._headers)  # http or https
        why = ""
        for pause_s in (*self._pauses_s, 0.0):
            try:
                urlopen(request, timeout=settings.timeout_s, context=self._tls).close()
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
        log.warning(
            "event=spans_lost num=%d url=%s why=%r", len(spans), settings.url, why
        )

    def shutdown(self) -> None:
        """Lets nothing be tried again. Thread-safe; idempotent."""
        self._is_closing.set()


class ConsoleExporter:
    """Prints a line of JSON for each span."""

    def export(self, spans: Sequence[EndedSpan]) -> None:
        """Prints spans."""
        for span in spans:
            document = {
                "name": span.name,
                "context": _ids(span.own),
                "parent_id": _ids(span.parent)["span_id"] if span.parent else None,
                "start_time": _time(span.begun_s),
                "end_time": _time(span.ended_s),
                "status": "ERROR" if span.is_failed else "UNSET",
                "attributes": span.attributes,
                "links": [_ids(each) for each in span.links],
            }
            sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()

    def shutdown(self) -> None:
        """There is nothing to end."""


def _ids(of: TraceContext) -> Mapping[str, str]:
    return {"trace_id": f"0x{of.trace_id:032x}", "span_id": f"0x{of.span_id:016x}"}


def _time(since_epoch_s: float) -> str:
    return datetime.fromtimestamp(since_epoch_s, UTC).isoformat()
