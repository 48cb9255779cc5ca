"""Spans of requests and batches, and what is asked of the variables."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.handlers.fake_http_call import FakeHttpCall
from tests.handlers.plan_desk import Desk, Model, PromptModel, SharedLookup, message
from tests.handlers.served import OneModel
from tests.present import present
from tests.tensors import floats
from tfs.codec.json.predict_body import Layout
from tfs.codec.model_spec import ModelSpec
from tfs.codec.tensor import fill_tensor_proto
from tfs.core.call import TRACING, Peer
from tfs.core.clock import MonotonicClock
from tfs.core.errors import Code
from tfs.core.servable_id import ServableId
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_bursts import BurstTemplate, RequestBursts
from tfs.handlers.rest.forms import Form, FormedReplies
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.server.tracing import otel_tracing
from tfs.server.tracing.otel_tracer import OtelTracer
from tfs.server.tracing.otel_tracing import OtelTracing
from tfs.server.tracing.settings import TracingSettings
from tfs.testing.fake_call import FakeCall
from tfs.testing.fake_clock import FakeClock

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


class Traced:
    """A handler of Predict whose requests are traced into memory.

    Attributes:
        draws: The numbers that decide which requests are sampled; 0.0, for the next, when
            used up.

    """

    def __init__(self, share: float = 1.0, *, takes_parent: bool = True) -> None:
        self._ended = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._ended))
        known = [TraceContextTextMapPropagator()] if takes_parent else []
        self.draws: list[float] = []
        self.models = OneModel()
        self.handler = PredictHandler(self.models)
        self.tracer = OtelTracer(
            provider.get_tracer("tfs"),
            CompositePropagator(known),
            MonotonicClock(),
            TracingSettings("console", share, True),
            draw=lambda: self.draws.pop(0) if self.draws else 0.0,
        )

    def call(self, model: str = "m", **metadata: str) -> FakeCall:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        fill_tensor_proto(request.inputs["x"], floats((1, 2), 1, 2))
        call = FakeCall(request.SerializeToString(), metadata=tuple(metadata.items()))
        call.opened_s = MonotonicClock.now()
        return call

    def spans(self) -> dict[str, ReadableSpan]:
        """Returns the spans that have ended, by name."""
        return {span.name: span for span in self.all_spans()}

    def all_spans(self) -> Sequence[ReadableSpan]:
        """Returns the spans that have ended since it was last asked."""
        found = self._ended.get_finished_spans()
        self._ended.clear()
        return found


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced(share=0.5)
    TRACING.tracer = made.tracer
    yield made
    TRACING.tracer = None


def parent_of(span: ReadableSpan) -> int:
    return span.parent.span_id if span.parent else 0


def context_of(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.get_span_context()
    assert context is not None
    return context


def id_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


def linked_by(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def test_a_request_has_its_phases_as_spans(traced: Traced) -> None:
    """One below the other, and in the order of time; the request's has what answered."""
    call = traced.call()
    traced.models.servable.is_paused = True
    traced.handler(call)
    (task,) = traced.models.servable.tasks
    assert task.begin(MonotonicClock.now(), "m/3") is None
    traced.models.servable.answer(task)
    spans = traced.spans()
    assert spans.keys() == {"Predict", "queue", "interpreter"}
    request, queue, interpreter = (
        spans[name] for name in ("Predict", "queue", "interpreter")
    )
    assert request.kind == SpanKind.SERVER
    assert request.attributes == {
        "tfs.model": "m",
        "tfs.version": 3,
        "tfs.signature": "serving_default",
    }
    assert parent_of(request) == 0
    assert parent_of(queue) == parent_of(interpreter) == id_of(request)
    times: list[Any] = [
        request.start_time,
        queue.start_time,
        queue.end_time,
        interpreter.end_time,
        request.end_time,
    ]
    assert times == sorted(times)
    assert interpreter.start_time == queue.end_time


def test_a_batch_is_linked_to_its_requests(traced: Traced) -> None:
    """It lies below the first; the interpreter's span lies below it."""
    calls = [traced.call(), traced.call()]
    traced.models.servable.is_paused = True
    for call in calls:
        traced.handler(call)
    tasks = traced.models.servable.tasks
    first, second = (task.trace for task in tasks)
    assert first is not None
    assert second is not None
    now_s = MonotonicClock.now()
    batch = first.join([second], 2, now_s)
    batch.compute("m/3", now_s)
    inner = batch.context
    traced.models.servable.answer(tasks[0])
    spans = traced.spans()
    assert spans["batch"].attributes == {"tfs.rows": 2}
    assert parent_of(spans["batch"]) == id_of(spans["Predict"])
    assert parent_of(spans["interpreter"]) == id_of(spans["batch"])
    assert id_of(spans["interpreter"]) == inner.span_id
    linked = linked_by(spans["batch"])
    traced.models.servable.answer(tasks[1])
    later = traced.spans()
    assert later.keys() == {"Predict", "queue"}
    assert linked == {id_of(spans["Predict"]), id_of(later["Predict"])}


@pytest.mark.parametrize(("flags", "is_traced"), [("01", True), ("00", False)])
def test_a_request_is_traced_as_its_caller_is(
    traced: Traced, flags: str, is_traced: bool
) -> None:
    """Its span lies below the caller's, whatever share is sampled otherwise."""
    traced.handler(traced.call(traceparent=f"00-{TRACE:032x}-{SPAN:016x}-{flags}"))
    spans = traced.spans()
    assert bool(spans) is is_traced
    if is_traced:
        assert context_of(spans["Predict"]).trace_id == TRACE
        assert parent_of(spans["Predict"]) == SPAN


def test_a_share_of_the_others_is_traced(traced: Traced) -> None:
    """Also of requests that came together; those that are not are answered alike."""
    traced.draws = [0.6]  # one is passed over behind the first
    calls = [traced.call(), traced.call(), traced.call()]
    traced.handler.take_burst(calls)
    assert [call.num_finishes for call in calls] == [1, 1, 1]
    assert [call.cancel.trace is None for call in calls] == [False, True, False]
    assert "Predict" in traced.spans()
    warm_up = traced.call()
    warm_up.peer = Peer("warm-up", "warm-up")
    traced.handler(warm_up)
    assert traced.spans() == {}


@pytest.mark.parametrize("kind", [Model, PromptModel])
def test_requests_that_come_together_stay_together_if_some_are_traced(
    traced: Traced, kind: type[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch has them all, also if it waits; its span is linked to those that are sampled."""
    together: list[int] = []

    def reply_all(
        _: FakeCall, calls: Sequence[FakeCall], messages: Sequence[bytes]
    ) -> None:
        together.append(len(calls))
        for call, reply in zip(calls, messages, strict=True):
            call.reply(reply)

    monkeypatch.setattr(FakeCall, "reply_all", reply_all)
    traced.draws = [0.0, 0.6, 0.99]  # gaps of 0, 1 and 6 behind the first
    desk, model = Desk(SharedLookup()), kind()
    desk.publish(model)
    desk.handler.take_burst([FakeCall(message(0, 0))])
    desk.finish()
    traced.spans()
    num_before = model.num_calls + getattr(model, "num_prompt_calls", 0)
    calls = [FakeCall(message(each, each)) for each in range(4)]
    desk.send(calls)
    desk.finish()
    assert [call.num_finishes for call in calls] == [1] * 4
    assert together == [4]
    assert model.num_calls + getattr(model, "num_prompt_calls", 0) == num_before + 1
    is_traced = [call.cancel.trace is not None for call in calls]
    assert is_traced == [True, False, True, False]
    spans = traced.all_spans()
    named = sorted(span.name for span in spans if span.name != "interpreter")
    assert named == ["Predict", "Predict", "batch", "queue", "queue"]
    (batch,) = (span for span in spans if span.name == "batch")
    requests = {id_of(span) for span in spans if span.name == "Predict"}
    assert linked_by(batch) == requests
    assert batch.attributes == {"tfs.rows": 4}
    if kind is PromptModel:
        (interpreter,) = (span for span in spans if span.name == "interpreter")
        assert parent_of(interpreter) == id_of(batch)


def test_requests_over_http_that_come_together_are_traced_alike(
    traced: Traced,
) -> None:
    """Those for which there is no plan are answered one by one, sampled or not."""
    traced.draws = [0.6]  # one is passed over behind the first
    bursts = RequestBursts(traced.handler)
    calls = [FakeHttpCall("POST", "/v1/models/m:predict", b"[1]") for _ in range(3)]
    replies = FormedReplies(Form.JSON, Layout.ROWS)
    template = BurstTemplate(ModelSpec("m"), (), replies)
    bursts.learn(calls[0], lambda bodies: [(template, (each,)) for each in bodies])
    assert bursts.take(calls) == calls
    assert [call.cancel.trace is None for call in calls] == [False, True, False]


def test_an_error_ends_the_span_too(traced: Traced) -> None:
    """What a caller did wrong is no error of the server."""
    traced.handler(traced.call(model="absent"))
    span = traced.spans()["Predict"]
    assert span.attributes == {"tfs.status": "NOT_FOUND"}
    assert span.status.is_unset


def test_what_the_server_did_wrong_is_its_error(traced: Traced) -> None:
    """The span says so by its status; what no UTF-8 is in an attribute is replaced."""
    trace = present(traced.tracer.begin(traced.call(), "Predict"))
    trace.name(ServableId("m\udcff", 1), "s")
    trace.end(Code.INTERNAL, 1.0, 2.0, 3.0)
    span = traced.spans()["Predict"]
    assert not span.status.is_ok
    assert present(span.attributes)["tfs.model"] == "m?"


def test_without_its_propagator_no_caller_is_a_parent() -> None:
    """The request is traced as one that nobody traces yet."""
    traced = Traced(takes_parent=False)
    call = traced.call(traceparent=f"00-{TRACE:032x}-{SPAN:016x}-00")
    assert present(traced.tracer.begin(call, "Predict")).context.trace_id != TRACE


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [
        (f"00-{TRACE:032x}-{SPAN:016x}-01", True),
        (f"cc-{TRACE:032x}-{SPAN:016x}-09-what the future is like", True),
        ("", False),
        ("00", False),
        (f"ff-{TRACE:032x}-{SPAN:016x}-01", False),
        (f"00-{0:032x}-{SPAN:016x}-01", False),
        (f"00-{TRACE:032x}-{0:016x}-01", False),
        (f"00-{TRACE:032x}-{SPAN:016x}-1", False),
        (b"\x00", False),
    ],
)
def test_what_is_no_span_starts_a_trace_of_its_own(
    value: str | bytes, is_taken: bool
) -> None:
    """A bad ``traceparent`` costs neither the request nor its trace."""
    traced = Traced()
    call = traced.call()
    call.metadata = (("a", "b"), ("traceparent", value))
    trace = present(traced.tracer.begin(call, "Predict"))
    assert (trace.context.trace_id == TRACE) is is_taken


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_TRACES_SAMPLER", "jaeger_remote")],
)
def test_a_wrong_setting_warns_once_and_traces_nothing(
    caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    """The server starts all the same."""
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", name: value}
    tracing = OtelTracing(given, FakeClock())
    with caplog.at_level(logging.WARNING):
        tracing.start()
    assert TRACING.tracer is None
    assert len(caplog.records) == 1
    assert f"{name}={value}" in caplog.text
    tracing.close()


def test_headers_are_refused_without_what_they_say(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They have the keys of collectors, and what is wrong with them goes to the log."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "secret,key=secr\u00e9t")
    tracing = OtelTracing({"OTEL_TRACES_EXPORTER": "otlp"}, FakeClock())
    with caplog.at_level(logging.WARNING):
        tracing.start()
    tracing.close()
    assert "Header format invalid" in caplog.text
    assert "secr" not in caplog.text


def test_a_collector_that_says_nothing_does_not_keep_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK goes on trying behind it; then the spans are lost, which is logged."""
    monkeypatch.setattr(otel_tracing, "_LAST_SPANS_S", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with socket.create_server(("127.0.0.1", 0)) as collector:
        url = f"http://127.0.0.1:{collector.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracing = OtelTracing(os.environ, MonotonicClock())
        tracing.start()
        assert TRACING.tracer is not None
        trace = present(TRACING.tracer.begin(Traced().call(), "Predict"))
        trace.end(Code.OK, 1.0, 2.0, 3.0)
        with caplog.at_level(logging.WARNING):
            tracing.close()
            assert TRACING.tracer is None
            (last,) = (t for t in threading.enumerate() if t.name == "last-spans")
            last.join()
    assert "Failed to export spans" in caplog.text
