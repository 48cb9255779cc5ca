"""What the OTEL_* variables say. Pure.

Resources and batches of spans are the SDK's, which reads their variables itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tfs.core.errors import InvalidArgument

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
PROPAGATORS: Final = "OTEL_PROPAGATORS"

_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_OTLP_TRACES: Final = f"{_OTLP}TRACES_"  # counts for more
_ASKING: Final = (EXPORTER, f"{_OTLP}ENDPOINT", f"{_OTLP_TRACES}ENDPOINT")
_HTTP: Final = "http/protobuf"
_URL: Final = r"https?://[^/]+.*"
_PARENT: Final = "parentbased_"
_W3C: Final = "tracecontext"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Who is told of spans by OTLP over HTTP, and how. Immutable.

    Attributes:
        url: Where they are posted.
        headers: What is sent beside them.
        timeout_s: For each attempt.
        is_gzip: Whether they are compressed.
        ca_file: Whose certificates are trusted; empty for the system's.
        client_certificate_file: Shows who the server is; empty for nothing.
        client_key_file: Its key; empty if that is in the same file.

    """

    url: str
    headers: Mapping[str, str]
    timeout_s: float = 10.0
    is_gzip: bool = False
    ca_file: str = ""
    client_certificate_file: str = ""
    client_key_file: str = ""


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
    propagators = given.get(PROPAGATORS) or _W3C
    if _W3C not in propagators:
        raise _wrong(PROPAGATORS, propagators, _W3C)
    sampler = given.get(SAMPLER) or f"{_PARENT}always_on"
    kind = sampler.removeprefix(_PARENT)
    if kind not in _SHARES:
        known = ", ".join(_SHARES)
        raise _wrong(SAMPLER, sampler, f"{known}, or one of these after {_PARENT}")
    share = _SHARES[kind]
    if share is None:
        share = _share(given.get(SAMPLER_ARG) or "1")
    return TracingSettings(exporter, share, sampler.startswith(_PARENT))


def read_collector(environment: Mapping[str, str]) -> CollectorSettings:
    """Returns whom the variables name; this machine's by default.

    Raises:
        InvalidArgument: One has a value that means nothing here; names both.

    """

    def read(what: str, default: str, form: str = ".*", expected: str = "") -> str:
        for name in (f"{_OTLP_TRACES}{what}", f"{_OTLP}{what}"):
            value = environment.get(name, "").strip()
            if value:
                if not re.fullmatch(form, value):
                    told = "..." if what == "HEADERS" else value  # it may be a secret
                    raise _wrong(name, told, expected)
                return value
        return default

    read("PROTOCOL", _HTTP, _HTTP, _HTTP)
    url = read("ENDPOINT", "http://localhost:4318", _URL, "http://... or https://...")
    if not environment.get(f"{_OTLP_TRACES}ENDPOINT", "").strip():
        url = f"{url.removesuffix('/')}/v1/traces"
    pairs = read("HEADERS", "", r"[^=,]+=[^,]*(,[^=,]+=[^,]*)*,?", "name=value,...")
    headers = {
        name.strip(): unquote(value).strip()
        for name, _, value in (pair.partition("=") for pair in pairs.split(","))
        if name
    }
    if not all(
        f"{n}{v}".isascii() and f"{n}{v}".isprintable() for n, v in headers.items()
    ):
        raise _wrong(f"{_OTLP}HEADERS", "...", "printable ASCII in names and values")
    return CollectorSettings(
        url=url,
        headers=headers,
        timeout_s=float(read("TIMEOUT", "10", r"\d+(\.\d*)?", "seconds")),
        is_gzip=read("COMPRESSION", "none", "gzip|none", "gzip or none") == "gzip",
        ca_file=read("CERTIFICATE", ""),
        client_certificate_file=read("CLIENT_CERTIFICATE", ""),
        client_key_file=read("CLIENT_KEY", ""),
    )


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
