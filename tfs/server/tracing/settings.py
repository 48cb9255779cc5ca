"""What the OTEL_* variables say. Pure.

Only what decides about the server's own spans is read here; exporters, resources and
batches of spans read their variables themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"

_ASKING: Final = (
    EXPORTER,
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_PROTOCOLS: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
)
_HTTP: Final = "http/protobuf"
_PARENT: Final = "parentbased_"
_SHARES: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Which requests are traced, and where that goes. Immutable.

    Attributes:
        exporter: ``otlp`` or ``console``.
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
    if exporter not in ("otlp", "console"):
        raise _wrong(EXPORTER, exporter, "otlp, console or none")
    if exporter == "otlp":
        for name in _PROTOCOLS:
            protocol = given.get(name) or _HTTP
            if protocol != _HTTP:
                raise _wrong(name, protocol, _HTTP)
    sampler = given.get(SAMPLER) or f"{_PARENT}always_on"
    kind = sampler.removeprefix(_PARENT)
    if kind not in _SHARES:
        known = ", ".join(_SHARES)
        raise _wrong(SAMPLER, sampler, f"{known}, or one of these after {_PARENT}")
    share = _SHARES[kind]
    if share is None:
        share = _share(given.get(SAMPLER_ARG) or "1")
    return TracingSettings(exporter, share, sampler.startswith(_PARENT))


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise _wrong(SAMPLER_ARG, text, "a number from 0 to 1")
    return share


def _wrong(name: str, value: str, expected: str) -> InvalidArgument:
    return InvalidArgument(f"{name}={value}: expected {expected}")
