"""Spans that have ended, as messages of OTLP. Pure.

(opentelemetry/proto/trace/v1/trace.proto.) Written here because to make the SDK's spans, and
its messages of them, costs five times as much as everything else of a traced request.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tfs.codec.wire import delimited, tag, varint
from tfs.core.errors import Code
from tfs.core.servable import TraceContext

_OURS: Final = frozenset(
    {Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS, Code.UNAVAILABLE, Code.UNIMPLEMENTED}
)
"""Codes that are a server's fault (semantic conventions of gRPC spans)."""

_LOW: Final = (1 << 64) - 1
_IDS: Final = struct.Struct(">2sQQ2sQ")  # of a span, and of a link
_PARENT: Final = struct.Struct(">2sQ")
_TIMES: Final = struct.Struct("<cQcQ")
_INTERNAL, _SERVER = b"\x30\x01", b"\x30\x02"  # kinds of spans
_FAILED: Final = b"\x7a\x02\x18\x02"  # a status


_SAMPLED: Final = SimpleNamespace(trace_flags=SimpleNamespace(sampled=True))


class EndedSpan(NamedTuple):
    """What is told of a span; times are since the epoch. Immutable."""

    own: TraceContext
    parent: TraceContext | None
    name: str
    begun_s: float
    ended_s: float
    attributes: Mapping[str, str | int]
    links: Sequence[TraceContext] = ()
    code: Code = Code.OK
    is_request: bool = False

    @property
    def context(self) -> object:
        """What the SDK's processor asks whether the span is sampled."""
        return _SAMPLED

    @property
    def is_failed(self) -> bool:
        """Whether the server is at fault."""
        return self.code in _OURS


def write_spans(
    resource: Mapping[str, Any], version: str, spans: Sequence[EndedSpan]
) -> bytes:
    """Returns an ``ExportTraceServiceRequest``.

    Args:
        resource: Attributes of the server.
        version: The version of TFS.
        spans: What it tells.

    """
    scope = delimited(1, b"tfs") + delimited(2, version.encode())
    own = b"".join([_attribute(1, name, value) for name, value in resource.items()])
    scoped = (delimited(1, scope), *(delimited(2, _span(each)) for each in spans))
    return delimited(1, delimited(1, own) + delimited(2, b"".join(scoped)))


def _span(span: EndedSpan) -> bytes:
    parts = [_ids(span.own)]
    if span.parent is not None:
        parts.append(_PARENT.pack(b"\x22\x08", span.parent.span_id))
    begun_ns, ended_ns = int(span.begun_s * 1e9), int(span.ended_s * 1e9)
    parts += (
        _name(span.name),
        _SERVER if span.is_request else _INTERNAL,
        _TIMES.pack(b"\x39", begun_ns, b"\x41", ended_ns),
    )
    for name, value in span.attributes.items():
        parts.append(_attribute(9, name, value))
    for each in span.links:
        parts.append(delimited(13, _ids(each)))
    if span.is_failed:
        parts.append(_FAILED)
    return b"".join(parts)


def _ids(of: TraceContext) -> bytes:
    trace_id = of.trace_id
    return _IDS.pack(
        b"\x0a\x10", trace_id >> 64, trace_id & _LOW, b"\x12\x08", of.span_id
    )


@lru_cache(64)
def _name(name: str) -> bytes:
    return delimited(5, name.encode())


@lru_cache(1024, typed=True)
def _attribute(number: int, name: str, value: object) -> bytes:
    """Returns a ``KeyValue``: numbers as such, all else as text."""
    if type(value) is int:
        any_value = tag(3, 0) + varint(value)
    else:
        any_value = delimited(1, str(value).encode("utf-8", "replace"))
    return delimited(number, delimited(1, name.encode()) + delimited(2, any_value))
