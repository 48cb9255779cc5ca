"""What the OTEL_* variables mean to the server."""

from __future__ import annotations

import pytest

from tfs.core.errors import InvalidArgument
from tfs.server.tracing.settings import TracingSettings, read_settings

ON = {"OTEL_TRACES_EXPORTER": "console"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x"}, None),
        ({"OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ON, "OTEL_SDK_DISABLED": "True"}, None),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"},
            TracingSettings("otlp_proto_http", 1.0, True),
        ),
        (ON, TracingSettings("console", 1.0, True)),
        (
            {**ON, "OTEL_TRACES_SAMPLER": "always_off"},
            TracingSettings("console", 0.0, False),
        ),
        (
            {
                **ON,
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "0.01",
            },
            TracingSettings("console", 0.01, True),
        ),
        (
            {**ON, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            TracingSettings("console", 1.0, True),
        ),
        (
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            TracingSettings("otlp_proto_grpc", 1.0, True),
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
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/not/there.pem"),
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
