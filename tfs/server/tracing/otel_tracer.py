"""Traces requests for OpenTelemetry: makes OTLP's spans of them.

A trace has the spans request, queue, batch and interpreter. The batch is below the first
of its requests that is traced, and linked to the others. Which requests are traced is
decided before anything is made of them. Of those that are, times and ids are noted, and
made into spans when they have ended.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import (
    ResourceSpans,
    ScopeSpans,
    Span,
    Status,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from tfs.core.call import Call, CallT
from tfs.core.clock import Clock
from tfs.core.errors import Code
from tfs.core.servable import Trace, TraceContext
from tfs.core.servable_id import ServableId
from tfs.server.system.versions import distribution_version
from tfs.server.tracing.exporters import EndedSpan
from tfs.server.tracing.settings import TracingSettings
from tfs.server.tracing.traceparent import parent_of

_INNER: Final = frozenset({"warm-up"})  # listeners of calls that nobody sent
_OURS: Final = frozenset(
    {Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS, Code.UNAVAILABLE, Code.UNIMPLEMENTED}
)
"""Codes that are a server's fault (semantic conventions of gRPC spans)."""

_FAILED: Final = Status(code=Status.STATUS_CODE_ERROR)


def server_resource() -> ResourceSpans:
    """Returns the server's attributes, as the SDK finds them, without spans."""
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count for more.
    own = Resource.create({"service.name": "tfs"})
    found = own.merge(OTELResourceDetector().detect()).attributes
    scope = InstrumentationScope(name="tfs", version=distribution_version("tfs"))
    return ResourceSpans(
        resource=resource_pb2.Resource(
            attributes=[_attribute(*each) for each in found.items()]
        ),
        scope_spans=[ScopeSpans(scope=scope)],
    )


class OtelTracer:
    """Begins the traces of sampled requests. See :class:`tfs.core.call.Tracer`.

    Args:
        on_end: Takes spans that have ended. Thread-safe.
        clock: What the server's times are measured by.
        settings: Which requests are traced.
        draw: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        on_end: Callable[[EndedSpan], None],
        clock: Clock,
        settings: TracingSettings,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._on_end = on_end
        self._clock = clock
        self._share = settings.share
        self._takes_parent = settings.takes_parent
        self._follows_parent = settings.follows_parent
        self._draw = draw
        # Drawn at once: a number for each request would cost more than the request has.
        self._num_passed_over = self._gap()
        # The last metadata without a parent; a client's calls share one object.
        self._without: object = None

    def begin(self, call: Call, method: str) -> Trace | None:
        parent = None
        metadata = call.metadata
        if self._takes_parent and metadata is not self._without:
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
        self._attributes: dict[str, str | int] = {}
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
            attributes = {"tfs.servable": who} if who else {}
            self._end(own, self.own, "interpreter", computed_s, done_s, attributes)
        kind = Span.SPAN_KIND_INTERNAL
        if not self._requests:
            started_s = max(begun_s, self._started_s or done_s)
            self._end(self._below(), self.own, "queue", begun_s, started_s, {})
            for batch in self._batches:
                batch.end(code, begun_s, done_s, done_s)
            kind = Span.SPAN_KIND_SERVER
        if code is not Code.OK:
            self._attributes["tfs.status"] = code.name
        self._end(
            self.own,
            self._parent,
            self._name,
            self._begun_s,
            now_s,
            self._attributes,
            kind=kind,
            links=[Span.Link(**_ids(each.own)) for each in self._requests],
            status=_FAILED if code in _OURS else None,
        )

    def _end(
        self,
        own: TraceContext,
        parent: TraceContext | None,
        name: str,
        begun_s: float,
        ended_s: float,
        attributes: Mapping[str, str | int],
        kind: Span.SpanKind.ValueType = Span.SPAN_KIND_INTERNAL,
        **more: Any,
    ) -> None:
        span = Span(
            **_ids(own),
            name=name,
            kind=kind,
            start_time_unix_nano=int((begun_s + self._wall_s) * 1e9),
            end_time_unix_nano=int((ended_s + self._wall_s) * 1e9),
            attributes=[_attribute(*each) for each in attributes.items()],
            **more,
        )
        if parent is not None:
            span.parent_span_id = _ids(parent)["span_id"]
        self._on_end(EndedSpan(span))

    def _below(self) -> TraceContext:
        return TraceContext(self.own.trace_id, random.getrandbits(64))


def _ids(context: TraceContext) -> dict[str, Any]:
    own, trace = context.span_id, context.trace_id
    return {"trace_id": trace.to_bytes(16), "span_id": own.to_bytes(8)}


@lru_cache(1024, typed=True)
def _attribute(name: str, value: object) -> KeyValue:
    """Returns an attribute: numbers as such, all else as text."""
    if type(value) is int:
        return KeyValue(key=name, value=AnyValue(int_value=value))
    text = str(value).encode(errors="replace").decode()  # a lone surrogate is refused
    return KeyValue(key=name, value=AnyValue(string_value=text))
