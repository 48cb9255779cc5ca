"""What the OTEL_* variables ask for.

Exporters, propagators, resources and batches of spans are the SDK's, which reads their
variables itself. What it would find wrong at each export is checked here, once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"

_ASKING: Final = (
    EXPORTER,
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_PARENT: Final = "parentbased_"
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_FILES: Final = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
_SHARES: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Which requests are traced, and where that goes. Immutable.

    Attributes:
        exporter: What OpenTelemetry's packages call it: ``console``, ``otlp_proto_http``, ...
        share: Which share of the requests that nobody traces yet is traced, 0 to 1.
        follows_parent: Whether a request that its caller traces, or does not, is traced
            likewise.

    """

    exporter: str
    share: float
    follows_parent: bool


def read_settings(environment: Mapping[str, str]) -> TracingSettings | None:
    """Returns what the variables ask for; None if they ask for no traces.

    Raises:
        InvalidArgument: One has a value that means nothing here; names both.

    """
    given = {name: value.strip() for name, value in environment.items()}
    if given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not any(given.get(name) for name in _ASKING):
        return None
    exporter = given.get(EXPORTER) or "otlp"
    if exporter == "none":
        return None
    if exporter == "otlp":
        name = TRACES_PROTOCOL if given.get(TRACES_PROTOCOL) else PROTOCOL
        protocol = given.get(name) or "http/protobuf"
        if protocol not in _OTLP:
            raise wrong(name, protocol, " or ".join(_OTLP))
        exporter = _OTLP[protocol]
        for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
            _check_otlp(given, prefix, is_http=protocol != "grpc")
    sampler = given.get(SAMPLER) or f"{_PARENT}always_on"
    kind = sampler.removeprefix(_PARENT)
    if kind not in _SHARES:
        known = ", ".join(_SHARES)
        raise wrong(SAMPLER, sampler, f"{known}, or one of these after {_PARENT}")
    share = _SHARES[kind]
    if share is None:
        share = _share(given.get(SAMPLER_ARG) or "1")
    follows_parent = sampler.startswith(_PARENT)
    return TracingSettings(exporter, share, follows_parent)


def _check_otlp(given: Mapping[str, str], prefix: str, *, is_http: bool) -> None:
    for name in (prefix + each for each in _FILES):
        if given.get(name) and not os.access(given[name], os.R_OK):
            raise wrong(name, given[name], "a file that this process may read")
    endpoint = given.get(f"{prefix}ENDPOINT")
    if endpoint and is_http and not endpoint.startswith(("http://", "https://")):
        raise wrong(f"{prefix}ENDPOINT", endpoint, "http://HOST:PORT, or https://")


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise wrong(SAMPLER_ARG, text, "a number from 0 to 1")
    return share


def wrong(name: str, value: str, expected: str) -> InvalidArgument:
    """Returns the error of a variable whose value means nothing here."""
    return InvalidArgument(f"{name}={value}: expected {expected}")
