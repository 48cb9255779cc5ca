"""Traces requests with OpenTelemetry's SDK, which the extra ``otel`` brings.

A trace has the spans request, queue, batch and interpreter. The batch is below the first
of its requests that is traced, and linked to the others. Spans get the times that the
server measures anyway, so most of them are made when a request has ended.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tfs.core.call import Call
from tfs.core.clock import Clock
from tfs.core.errors import Code, ServingError
from tfs.core.servable_id import ServableId
from tfs.core.trace import Trace, TraceContext
from tfs.core.tracing import TRACING, CallT
from tfs.server.system.versions import distribution_version
from tfs.server.tracing.settings import TracingSettings, read_settings
from tfs.server.tracing.traceparent import parent_of

log = logging.getLogger(__name__)

_INNER: Final = frozenset({"warm-up"})  # listeners of calls that nobody sent
_OURS: Final = frozenset(
    {Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS, Code.UNAVAILABLE, Code.UNIMPLEMENTED}
)
"""Codes that are a server's fault (semantic conventions of gRPC spans)."""
_FLUSH_MS: Final = 2000


class OtelTracing:
    """Begins and ends tracing. One thread starts and closes it.

    Args:
        environment: The OTEL_* variables.
        clock: What the server's times are measured by.

    """

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._provider: Any = None

    def start(self) -> None:
        """Traces requests from now on, if the variables ask for it.

        What they say wrongly is logged once, and nothing is traced.
        """
        try:
            settings = read_settings(self._environment)
            if settings is None:
                return
            self._provider = _provider_of(settings)
        except ImportError:
            log.warning(
                "event=tracing_off why='OTEL_* variables ask for traces, and "
                "OpenTelemetry is not installed: pip install tfs[otel]'"
            )
            return
        except ServingError as error:
            log.warning("event=tracing_off why=%r", error.message)
            return
        except Exception as error:  # the SDK reads variables of its own
            log.warning("event=tracing_off why=%r", str(error))
            return
        tracer = self._provider.get_tracer("tfs", distribution_version("tfs"))
        TRACING.tracer = OtelTracer(tracer, settings, self._clock)
        log.info(
            "event=tracing exporter=%s share=%g", settings.exporter, settings.share
        )

    def close(self) -> None:
        """Sends what was traced, within two seconds; idempotent."""
        provider, self._provider = self._provider, None
        if provider is not None:
            TRACING.tracer = None
            provider.force_flush(_FLUSH_MS)
            provider.shutdown()


def _provider_of(settings: TracingSettings) -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SpanExporter,
    )
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    exporter: SpanExporter
    if settings.exporter == "console":
        exporter = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )

        exporter = OTLPSpanExporter()
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count for more.
    resource = Resource({"service.name": "tfs"}).merge(_resource())
    # Which requests are traced was decided before a span is made.
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _resource() -> Any:
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect()


class OtelTracer:
    """Begins the traces of sampled requests. See :class:`tfs.core.tracing.Tracer`.

    Args:
        tracer: Makes spans.
        settings: Which requests are sampled.
        clock: What the server's times are measured by.
        draw: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        tracer: Any,
        settings: TracingSettings,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._tracer = tracer
        self._share = settings.share
        self._draw = draw
        # Drawn at once: a number for each request would cost more than the request has.
        self._num_passed_over = self._gap()
        self._follows_parent = settings.follows_parent
        self._clock = clock
        # The last metadata without a parent; a client's calls share one object.
        self._without: object = None

    def begin(self, call: Call, method: str) -> Trace | None:
        parent = None
        metadata = call.metadata
        if metadata is not self._without:
            parent = parent_of(metadata)
            if parent is None:
                self._without = metadata
        if parent is not None and self._follows_parent:
            is_sampled = parent.is_sampled
        elif self._num_passed_over:
            self._num_passed_over -= 1
            return None
        else:
            self._num_passed_over = self._gap()
            is_sampled = True
        if not is_sampled or call.peer.listener in _INNER:
            return None
        wall_ns = time.time_ns() - int(self._clock.now() * 1e9)
        context = None if parent is None else _context_of(parent.context)
        return RequestTrace(self._tracer, method, wall_ns, call.opened_s, context)

    def begin_some(self, calls: Sequence[CallT], method: str) -> Sequence[CallT]:
        num = len(calls)
        if self._num_passed_over >= num:
            ordinary = self._without
            for call in calls:
                if call.metadata is not ordinary:
                    break
            else:
                self._num_passed_over -= num
                return ()
        traced = []
        for call in calls:
            trace = self.begin(call, method)
            if trace is not None:
                call.cancel.trace = trace
                traced.append(call)
        return traced

    def _gap(self) -> float:
        """Returns how many requests to pass over before the next that is traced."""
        if self._share <= 0:
            return math.inf
        if self._share >= 1:
            return 0
        return int(math.log(1 - self._draw()) / math.log(1 - self._share))


class _Spans:
    """What the traces of requests and of batches have in common.

    Args:
        tracer: Makes spans.
        span: The outermost span.
        wall_ns: What added to a monotonic time makes it one since the epoch.

    """

    def __init__(self, tracer: Any, span: Any, wall_ns: int) -> None:
        self.span = span
        self._tracer = tracer
        self._wall_ns = wall_ns
        self._interpreter: Any = None
        self._lock = threading.Lock()  # guards the next field; leaf
        self._is_ended = False

    @property
    def context(self) -> TraceContext:
        span = self._interpreter or self.span
        found = span.get_span_context()
        return TraceContext(found.trace_id, found.span_id)

    def compute(self, who: str, now_s: float) -> None:
        if self._interpreter is None:
            self._interpreter = self._child("interpreter", now_s)
            self._interpreter.set_attribute("tfs.servable", who)

    def name(self, servable_id: ServableId, signature: str) -> None:
        self.span.set_attributes(
            {
                "tfs.model": servable_id.name,
                "tfs.version": servable_id.version,
                "tfs.signature": signature,
            }
        )

    def _end(self, code: Code, done_s: float, now_s: float) -> bool:
        with self._lock:
            if self._is_ended:
                return False
            self._is_ended = True
        if self._interpreter is not None:
            self._interpreter.end(self._ns(done_s))
        if code is not Code.OK:
            self.span.set_attribute("tfs.status", code.name)
            if code in _OURS:
                from opentelemetry.trace import StatusCode

                self.span.set_status(StatusCode.ERROR)
        self.span.end(self._ns(now_s))
        return True

    def _child(self, name: str, begun_s: float, links: Sequence[Any] = ()) -> Any:
        from opentelemetry.trace import set_span_in_context

        return self._tracer.start_span(
            name,
            set_span_in_context(self.span),
            links=links,
            start_time=self._ns(begun_s),
        )

    def _ns(self, time_s: float) -> int:
        return self._wall_ns + int(time_s * 1e9)


class RequestTrace(_Spans):
    """One request. See :class:`tfs.core.trace.Trace`."""

    def __init__(
        self, tracer: Any, method: str, wall_ns: int, opened_s: float, context: Any
    ) -> None:
        from opentelemetry.trace import SpanKind

        span = tracer.start_span(
            method,
            context,
            kind=SpanKind.SERVER,
            start_time=wall_ns + int(opened_s * 1e9),
        )
        super().__init__(tracer, span, wall_ns)
        self._started_s: float | None = None
        self._batches: list[BatchTrace] = []

    def join(self, others: Sequence[Trace], num_rows: int, begun_s: float) -> Trace:
        from opentelemetry.trace import Link

        requests = [self, *(each for each in others if isinstance(each, RequestTrace))]
        links = [Link(each.span.get_span_context()) for each in requests]
        span = self._child("batch", begun_s, links)
        span.set_attribute("tfs.rows", num_rows)
        batch = BatchTrace(self._tracer, span, self._wall_ns)
        for each in requests:
            each.note_start(begun_s)
            each._batches.append(batch)
        return batch

    def compute(self, who: str, now_s: float) -> None:
        super().compute(who, now_s)
        self.note_start(now_s)

    def note_start(self, begun_s: float) -> None:
        """Notes when the request had waited enough; the first time counts."""
        if self._started_s is None:
            self._started_s = begun_s

    def end(self, code: Code, begun_s: float, done_s: float, now_s: float) -> None:
        if not self._is_ended:
            queue = self._child("queue", begun_s)
            started_s = done_s if self._started_s is None else self._started_s
            queue.end(self._ns(max(started_s, begun_s)))
            for batch in self._batches:
                batch.end(code, begun_s, done_s, done_s)
        self._end(code, done_s, now_s)


class BatchTrace(_Spans):
    """A batch of requests. See :class:`tfs.core.trace.Trace`."""

    def join(self, others: Sequence[Trace], num_rows: int, begun_s: float) -> Trace:
        return self

    def end(self, code: Code, begun_s: float, done_s: float, now_s: float) -> None:
        self._end(code, done_s, now_s)


def _context_of(parent: TraceContext) -> Any:
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(parent.trace_id, parent.span_id, True, flags)
    return set_span_in_context(NonRecordingSpan(context))
