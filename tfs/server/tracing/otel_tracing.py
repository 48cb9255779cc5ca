"""Begins and ends tracing, by OpenTelemetry's SDK, which the extra ``otel`` brings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final

from tfs.core.call import TRACING
from tfs.core.clock import Clock
from tfs.server.system.versions import distribution_version
from tfs.server.tracing.settings import EXPORTER, TracingSettings, read_settings, wrong

log = logging.getLogger(__name__)

_LAST_SPANS_S: Final = 2.0  # a collector that is there takes them in some milliseconds


class OtelTracing:
    """Begins and ends tracing. One thread starts and closes it.

    Args:
        environment: The OTEL_* variables of this process.
        clock: What the server's times are measured by.

    """

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._close: Callable[[], None] | None = None

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
        from opentelemetry import propagate
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider, sampling
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from tfs.server.tracing.otel_tracer import OtelTracer

        # It shows headers that it cannot read, and they have the keys of collectors.
        logging.getLogger("opentelemetry.util.re").addFilter(_without_values)
        found = entry_points(
            group="opentelemetry_traces_exporter", name=settings.exporter
        )
        if not found:
            known = "otlp, console, none or another exporter that is installed"
            raise wrong(EXPORTER, settings.exporter, known)
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count for more than our name.
        own = Resource.create({"service.name": "tfs"})
        provider = TracerProvider(
            sampling.ALWAYS_ON,  # those that are not sampled do not come so far
            own.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        exporter = next(iter(found)).load()
        provider.add_span_processor(BatchSpanProcessor(exporter()))
        self._close = provider.shutdown
        TRACING.tracer = OtelTracer(
            provider.get_tracer("tfs", distribution_version("tfs")),
            propagate.get_global_textmap(),
            self._clock,
            settings,
        )

    def close(self) -> None:
        """Sends what was traced, for two seconds at most; idempotent."""
        close, self._close = self._close, None
        if close is not None:
            TRACING.tracer = None
            # The SDK tries for half a minute, which is all that a container has to end.
            last = threading.Thread(target=close, name="last-spans", daemon=True)
            last.start()
            last.join(_LAST_SPANS_S)


def _without_values(record: logging.LogRecord) -> bool:
    record.args = ("...",) * len(record.args or ())
    return True
