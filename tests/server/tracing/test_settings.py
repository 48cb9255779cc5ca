"""What the OTEL_* variables mean to the server, and traceparent."""

from __future__ import annotations

import pytest

from tfs.core.errors import InvalidArgument
from tfs.core.servable import TraceContext
from tfs.server.tracing.settings import TracingSettings, read_settings
from tfs.server.tracing.traceparent import Parent, parent_of

ON = {"OTEL_TRACES_EXPORTER": "console"}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x"}, None),
        ({"OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ON, "OTEL_SDK_DISABLED": "True"}, None),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"},
            TracingSettings("otlp", 1.0, True, True),
        ),
        (ON, TracingSettings("console", 1.0, True, True)),
        (
            {**ON, "OTEL_TRACES_SAMPLER": "always_off"},
            TracingSettings("console", 0.0, True, False),
        ),
        (
            {
                **ON,
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "0.01",
            },
            TracingSettings("console", 0.01, True, True),
        ),
        (
            {**ON, "OTEL_PROPAGATORS": "baggage, tracecontext"},
            TracingSettings("console", 1.0, True, True),
        ),
        (
            {**ON, "OTEL_PROPAGATORS": "b3,my-tracecontext"},
            TracingSettings("console", 1.0, False, True),
        ),
    ],
)
def test_the_standard_variables_say_what_is_traced(
    environment: dict[str, str], expected: TracingSettings | None
) -> None:
    """Nothing is traced unless an exporter or an endpoint is named."""
    assert read_settings(environment) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
        ("OTEL_TRACES_SAMPLER_ARG", "often"),
    ],
)
def test_a_value_that_means_nothing_here_is_named(name: str, value: str) -> None:
    """So is what would be right."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318",
        "OTEL_TRACES_SAMPLER": "traceidratio",
        name: value,
    }
    with pytest.raises(InvalidArgument, match=f"{name}={value}: expected "):
        read_settings(environment)


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"cc-{TRACE}-{SPAN}-09-what the future is like", True),
    ],
)
def test_a_caller_names_its_span(value: str, is_sampled: bool) -> None:
    """By metadata of gRPC or a header of HTTP, in W3C's form."""
    expected = Parent(TraceContext(int(TRACE, 16), int(SPAN, 16)), is_sampled)
    assert parent_of((("a", "b"), ("traceparent", value))) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        b"\x00",
    ],
)
def test_what_is_no_span_starts_a_trace_of_its_own(value: str | bytes) -> None:
    """A bad header must not cost the request, nor its trace."""
    assert parent_of((("traceparent", value),)) is None
    assert parent_of(()) is None
