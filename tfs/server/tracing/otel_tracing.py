"""Begins and ends tracing, by OpenTelemetry's SDK, which the extra ``otel`` brings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfs.core.call import TRACING
from tfs.core.clock import Clock
from tfs.server.tracing.settings import TracingSettings, read_settings

log = logging.getLogger(__name__)


class OtelTracing:
    """Begins and ends tracing. One thread starts and closes it.

    Args:
        environment: The OTEL_* variables of this process.
        clock: What the server's times are measured by.

    """

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._closing: Sequence[Callable[[], None]] = ()

    def start(self) -> None:
        """Traces requests from now on, if the variables ask for it.

        What they say wrongly is logged once, and nothing is traced.
        """
        try:
            settings = read_settings(self._environment)
            if settings is None:
                return
            self._begin(settings)
        except Exception as error:  # the SDK reads variables of its own
            why = str(error)
            if isinstance(error, ImportError):
                why = f"OTEL_* variables ask for it: pip install tfs[otel] ({why})"
            log.warning("event=tracing_off why=%r", why)
        else:
            log.info(
                "event=tracing exporter=%s share=%g", settings.exporter, settings.share
            )

    def _begin(self, settings: TracingSettings) -> None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from tfs.server.tracing import exporters
        from tfs.server.tracing.otel_tracer import OtelTracer, server_resource

        exporter = (
            exporters.ConsoleExporter()
            if settings.exporter == "console"
            else exporters.collector_exporter(self._environment, server_resource())
        )
        processor = BatchSpanProcessor(exporter)  # type: ignore[arg-type]
        self._closing = (exporter.shutdown, processor.shutdown)
        on_end: Any = processor.on_end  # it looks at nothing but their context
        TRACING.tracer = OtelTracer(on_end, self._clock, settings)

    def close(self) -> None:
        """Sends what was traced, in one attempt; idempotent."""
        closing, self._closing = self._closing, ()
        if closing:
            TRACING.tracer = None
        for close in closing:
            close()
