"""What the OTEL_* variables ask for. Pure.

Resources and batches of spans are the SDK's, which reads their variables itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
PROPAGATORS: Final = "OTEL_PROPAGATORS"

_ASKING: Final = (
    EXPORTER,
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_PARENT: Final = "parentbased_"
_W3C: Final = "tracecontext"
_SHARES: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Which requests are traced, and where that goes. Immutable.

    Attributes:
        exporter: ``otlp`` or ``console``.
        share: Which share of the requests that nobody traces yet is traced, 0 to 1.
        takes_parent: Whether the caller's span is the parent of the request's.
        follows_parent: Whether a request that its caller traces, or does not, is traced
            likewise.

    """

    exporter: str
    share: float
    takes_parent: bool
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
        raise wrong(EXPORTER, exporter, "otlp, console or none")
    propagators = (given.get(PROPAGATORS) or _W3C).split(",")
    takes_parent = _W3C in (each.strip() for each in propagators)
    sampler = given.get(SAMPLER) or f"{_PARENT}always_on"
    kind = sampler.removeprefix(_PARENT)
    if kind not in _SHARES:
        known = ", ".join(_SHARES)
        raise wrong(SAMPLER, sampler, f"{known}, or one of these after {_PARENT}")
    share = _SHARES[kind]
    if share is None:
        share = _share(given.get(SAMPLER_ARG) or "1")
    follows_parent = sampler.startswith(_PARENT)
    return TracingSettings(exporter, share, takes_parent, follows_parent)


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
