"""Traces requests for OpenTelemetry, whose SDK the extra ``otel`` brings.

A trace has the spans request, queue, batch and interpreter. The batch is below the first
of its requests that is traced, and linked to the others. Which requests are traced is
decided before anything is made of them. Of those that are, times and ids are noted, and
made into spans when they have ended.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tfs.core.call import TRACING, Call, CallT
from tfs.core.clock import Clock
from tfs.core.errors import Code, ServingError
from tfs.core.servable import Trace, TraceContext
from tfs.core.servable_id import ServableId
from tfs.server.tracing.exporters import CollectorExporter, ConsoleExporter
from tfs.server.tracing.otlp import EndedSpan
from tfs.server.tracing.settings import read_collector, read_settings
from tfs.server.tracing.traceparent import parent_of

log = logging.getLogger(__name__)

_INNER: Final = frozenset({"warm-up"})  # listeners of calls that nobody sent


class OtelTracing:
    """Begins and ends tracing. One thread starts and closes it.

    Args:
        environment: The OTEL_* variables.
        clock: What the server's times are measured by.

    """

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._exporter: CollectorExporter | ConsoleExporter = ConsoleExporter()
        self._processor: Any = None

    def start(self) -> None:
        """Traces requests from now on, if the variables ask for it.

        What they say wrongly is logged once, and nothing is traced.
        """
        try:
            settings = read_settings(self._environment)
            if settings is None:
                return
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if settings.exporter == "otlp":
                self._exporter = CollectorExporter(
                    read_collector(self._environment), _resource()
                )
            self._processor = BatchSpanProcessor(self._exporter)  # type: ignore[arg-type]
        except ImportError as error:
            log.warning(
                "event=tracing_off why='OTEL_* variables ask for traces, and "
                "OpenTelemetry cannot be imported: pip install tfs[otel]' error=%r",
                str(error),
            )
            return
        except Exception as error:  # the SDK reads variables of its own
            why = error.message if isinstance(error, ServingError) else str(error)
            log.warning("event=tracing_off why=%r", why)
            return
        TRACING.tracer = OtelTracer(
            self._processor.on_end,
            self._clock,
            settings.share,
            follows_parent=settings.follows_parent,
        )
        log.info(
            "event=tracing exporter=%s share=%g", settings.exporter, settings.share
        )

    def close(self) -> None:
        """Sends what was traced; idempotent."""
        processor, self._processor = self._processor, None
        if processor is not None:
            TRACING.tracer = None
            self._exporter.shutdown()
            processor.shutdown()


def _resource() -> Mapping[str, Any]:
    """Returns the server's attributes, as the SDK finds them."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count for more.
    own = Resource.create({"service.name": "tfs"})
    return dict(own.merge(OTELResourceDetector().detect()).attributes)


class OtelTracer:
    """Begins the traces of sampled requests. See :class:`tfs.core.call.Tracer`.

    Args:
        on_end: Takes spans that have ended. Thread-safe.
        clock: What the server's times are measured by.
        share: Which share of the requests that nobody traces yet is traced, 0 to 1.
        follows_parent: Whether a request that its caller traces, or does not, is traced
            likewise.
        draw: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        on_end: Callable[[EndedSpan], None],
        clock: Clock,
        share: float,
        *,
        follows_parent: bool = True,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._on_end = on_end
        self._clock = clock
        self._share = share
        self._follows_parent = follows_parent
        self._draw = draw
        # Drawn at once: a number for each request would cost more than the request has.
        self._num_passed_over = self._gap()
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
            if not parent.is_sampled:
                return None
        elif self._num_passed_over:
            self._num_passed_over -= 1
            return None
        else:
            self._num_passed_over = self._gap()
        if call.peer.listener in _INNER:
            return None
        wall_s = time.time() - self._clock.now()
        context = None if parent is None else parent.context
        return OtelTrace(self._on_end, method, call.opened_s, wall_s, context)

    def begin_some(self, calls: Sequence[CallT], method: str) -> Sequence[CallT]:
        traced = []
        for call in self._drawn(calls):
            trace = self.begin(call, method)
            if trace is not None:
                call.cancel.trace = trace
                traced.append(call)
        return traced

    def _drawn(self, calls: Sequence[CallT]) -> Iterator[CallT]:
        """Yields those that may be traced, which passes over the others at once."""
        ordinary = self._without
        for call in calls:
            if call.metadata is not ordinary:
                yield from calls
                return
        index, num = 0, len(calls)
        while self._num_passed_over < num - index:
            index += int(self._num_passed_over)
            self._num_passed_over = 0
            yield calls[index]
            index += 1
        self._num_passed_over -= num - index

    def _gap(self) -> float:
        """Returns how many requests to pass over before the next that is traced."""
        if self._share <= 0:
            return math.inf
        if self._share >= 1:
            return 0
        return int(math.log(1 - self._draw()) / math.log(1 - self._share))


class OtelTrace:
    """A request, or a batch of several. See :class:`tfs.core.servable.Trace`.

    Args:
        on_end: Takes spans that have ended. Thread-safe.
        name: The name of its span.
        begun_s: When it began, monotonic.
        wall_s: What added to a monotonic time makes it one since the epoch.
        parent: The span above it.
        requests: The requests that a batch is of; none for a request.

    """

    def __init__(
        self,
        on_end: Callable[[EndedSpan], None],
        name: str,
        begun_s: float,
        wall_s: float,
        parent: TraceContext | None,
        requests: Sequence[OtelTrace] = (),
    ) -> None:
        trace_id = random.getrandbits(128) if parent is None else parent.trace_id
        self.own = TraceContext(trace_id, random.getrandbits(64))
        self._on_end = on_end
        self._name = name
        self._begun_s = begun_s
        self._wall_s = wall_s
        self._parent = parent
        self._requests = requests
        self._attributes: dict[str, Any] = {}
        self._batches: tuple[OtelTrace, ...] = ()
        self._started_s: float | None = None  # when it had waited enough
        self._interpreter: tuple[TraceContext, str, float] | None = None
        self._open = [True]  # whoever takes it ends the trace

    @property
    def context(self) -> TraceContext:
        return self.own if self._interpreter is None else self._interpreter[0]

    def join(self, others: Sequence[Trace], num_rows: int, begun_s: float) -> Trace:
        if self._requests:
            return self  # a batch is joined with no other
        requests = [self, *(each for each in others if isinstance(each, OtelTrace))]
        batch = OtelTrace(
            self._on_end, "batch", begun_s, self._wall_s, self.own, requests
        )
        batch._attributes["tfs.rows"] = num_rows
        for each in requests:
            each._batches += (batch,)
            each._started_s = each._started_s or begun_s
        return batch

    def compute(self, who: str, now_s: float) -> None:
        if self._interpreter is None:
            self._interpreter = self._below(), who, now_s
        self._started_s = self._started_s or now_s

    def name(self, servable_id: ServableId, signature: str) -> None:
        self._attributes |= {
            "tfs.model": servable_id.name,
            "tfs.version": servable_id.version,
            "tfs.signature": signature,
        }

    def end(self, code: Code, begun_s: float, done_s: float, now_s: float) -> None:
        try:
            self._open.pop()
        except IndexError:
            return
        if self._interpreter is not None:
            own, who, computed_s = self._interpreter
            self._write_below(own, "interpreter", computed_s, done_s, who)
        if not self._requests:
            started_s = max(begun_s, self._started_s or done_s)
            self._write_below(self._below(), "queue", begun_s, started_s)
            for batch in self._batches:
                batch.end(code, begun_s, done_s, done_s)
        if code is not Code.OK:
            self._attributes["tfs.status"] = code.name
        self._on_end(
            EndedSpan(
                self.own,
                self._parent,
                self._name,
                self._begun_s + self._wall_s,
                now_s + self._wall_s,
                self._attributes,
                [each.own for each in self._requests],
                code,
                not self._requests,
            )
        )

    def _below(self) -> TraceContext:
        return TraceContext(self.own.trace_id, random.getrandbits(64))

    def _write_below(
        self,
        own: TraceContext,
        name: str,
        begun_s: float,
        ended_s: float,
        who: str = "",
    ) -> None:
        attributes = {"tfs.servable": who} if who else {}
        begun_s, ended_s = begun_s + self._wall_s, ended_s + self._wall_s
        self._on_end(EndedSpan(own, self.own, name, begun_s, ended_s, attributes))
