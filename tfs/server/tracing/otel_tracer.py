"""Traces requests by OpenTelemetry's SDK.

A trace has the spans request, queue, batch and interpreter. The batch is below the first
of its requests that is traced, and linked to the others. Which requests are traced is
decided before anything is made of them: to ask one of the SDK's samplers takes some 3 us,
a third of what a small request does.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace import Tracer as SpanTracer

from tfs.core.call import Call, Metadata
from tfs.core.clock import Clock
from tfs.core.errors import Code
from tfs.core.servable import Trace, TraceContext
from tfs.core.servable_id import ServableId
from tfs.server.tracing.settings import TracingSettings

_INNER: Final = frozenset({"warm-up"})  # listeners of calls that nobody sent
_OURS: Final = frozenset(
    {Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS, Code.UNAVAILABLE, Code.UNIMPLEMENTED}
)
"""Codes that are a server's fault (semantic conventions of gRPC spans)."""

_NOBODY: Final = Context()
"""Of a request whose caller named no span."""


class OtelTracer:
    """Begins the traces of sampled requests. See :class:`tfs.core.call.Tracer`.

    Args:
        tracer: Makes spans.
        propagator: Finds the caller's span in what came with a request.
        clock: What the server's times are measured by.
        settings: Which requests are traced.
        draw: Returns uniform numbers in [0, 1).

    """

    def __init__(
        self,
        tracer: SpanTracer,
        propagator: TextMapPropagator,
        clock: Clock,
        settings: TracingSettings,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._fields = propagator.fields
        self._clock = clock
        self._share = settings.share
        self._follows_parent = settings.follows_parent
        self._draw = draw
        # Drawn at once: a number for each request would cost more than the request has.
        self._num_passed_over = self._gap()
        # The last metadata without a parent; a client's calls share one object.
        self._without: object = None

    def begin(self, call: Call, method: str) -> Trace | None:
        above = self._above(call.metadata)
        caller = get_current_span(above).get_span_context()
        if caller.is_valid and self._follows_parent:
            if not caller.trace_flags.sampled:
                return None
        elif self._num_passed_over:
            self._num_passed_over -= 1
            return None
        else:
            self._num_passed_over = self._gap()
        if call.peer.listener in _INNER:
            return None
        wall_s = time.time() - self._clock.now()
        start = int((call.opened_s + wall_s) * 1e9)
        kind = SpanKind.SERVER
        span = self._tracer.start_span(method, above, kind, start_time=start)
        return OtelTrace(self._tracer, span, wall_s)

    def _above(self, metadata: Metadata) -> Context:
        """Returns where the caller's span is the current one, if it named one."""
        if metadata is self._without:
            return _NOBODY
        given = {
            key: value
            for key, value in metadata
            if key in self._fields and isinstance(value, str)
        }
        if not given:
            self._without = metadata
            return _NOBODY
        return self._propagator.extract(given)

    def begin_some(self, calls: Sequence[Call], method: str) -> bool:
        is_any = False
        for call in self._drawn(calls):
            trace = self.begin(call, method)
            if trace is not None:
                call.cancel.trace = trace
                is_any = True
        return is_any

    def _drawn(self, calls: Sequence[Call]) -> Iterator[Call]:
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
        tracer: Makes spans.
        span: Its own, which has begun.
        wall_s: What added to a monotonic time makes it one since the epoch.
        requests: The requests that a batch is of; none for a request.

    """

    def __init__(
        self,
        tracer: SpanTracer,
        span: Span,
        wall_s: float,
        requests: Sequence[OtelTrace] = (),
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._wall_s = wall_s
        self._requests = requests
        self._batches: tuple[OtelTrace, ...] = ()
        self._started_s: float | None = None  # when it had waited enough
        self._interpreter: Span | None = None
        self._open = [True]  # whoever takes it ends the trace

    @property
    def context(self) -> TraceContext:
        own = (self._interpreter or self._span).get_span_context()
        return TraceContext(own.trace_id, own.span_id)

    def join(self, others: Sequence[Trace], num_rows: int, begun_s: float) -> Trace:
        if self._requests:
            return self  # a batch is joined with no other
        requests = [self, *(each for each in others if isinstance(each, OtelTrace))]
        links = [Link(each._span.get_span_context()) for each in requests]
        span = self._below("batch", begun_s, {"tfs.rows": num_rows}, links)
        batch = OtelTrace(self._tracer, span, self._wall_s, requests)
        for each in requests:
            each._batches += (batch,)
            each._started_s = each._started_s or begun_s
        return batch

    def compute(self, who: str, now_s: float) -> None:
        if self._interpreter is None:
            of = {"tfs.servable": _text(who)} if who else {}
            self._interpreter = self._below("interpreter", now_s, of)
        self._started_s = self._started_s or now_s

    def name(self, servable_id: ServableId, signature: str) -> None:
        self._span.set_attributes(
            {
                "tfs.model": _text(servable_id.name),
                "tfs.version": servable_id.version,
                "tfs.signature": _text(signature),
            }
        )

    def end(self, code: Code, begun_s: float, done_s: float, now_s: float) -> None:
        try:
            self._open.pop()
        except IndexError:
            return
        if self._interpreter is not None:
            self._interpreter.end(self._wall_ns(done_s))
        if not self._requests:
            started_s = max(begun_s, self._started_s or done_s)
            self._below("queue", begun_s).end(self._wall_ns(started_s))
            for batch in self._batches:
                batch.end(code, begun_s, done_s, done_s)
        if code is not Code.OK:
            self._span.set_attribute("tfs.status", code.name)
        if code in _OURS:
            self._span.set_status(StatusCode.ERROR)
        self._span.end(self._wall_ns(now_s))

    def _below(
        self,
        name: str,
        begun_s: float,
        attributes: Mapping[str, str | int] | None = None,
        links: Sequence[Link] = (),
    ) -> Span:
        return self._tracer.start_span(
            name,
            set_span_in_context(self._span, _NOBODY),
            attributes=attributes,
            links=links,
            start_time=self._wall_ns(begun_s),
        )

    def _wall_ns(self, monotonic_s: float) -> int:
        return int((monotonic_s + self._wall_s) * 1e9)


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()  # a lone surrogate loses its batch
