"""A request's headers, checked once and made into a value that calls share.

There are three outcomes. Correct headers make a :class:`RequestHead`. Headers that can
be understood but ask for something that is not served make one whose ``refusal`` says
with which HTTP or gRPC status to answer. Headers that break HTTP/2's rules raise
:class:`MalformedHead`, and the stream is reset (RFC 9113 section 8.1.1).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import (
    Internal,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unimplemented,
)
from tfs.frontends.http2.hpack_decoder import Header
from tfs.frontends.inflation import Encoding

Metadata = tuple[tuple[str, str | bytes], ...]


class MalformedHead(Exception):
    """The headers break HTTP/2's rules; the message says which."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """What a client that does not speak gRPC gets. Immutable.

    Attributes:
        status: The HTTP status code.
        text: A sentence for people, sent as ``grpc-message``.

    """

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The headers of a request. Immutable, shared by all requests that repeat them.

    Attributes:
        path: ``/package.Service/Method``.
        metadata: What handlers see: the custom headers, ``-bin`` ones decoded.
        timeout_s: The value of ``grpc-timeout``; None if it was not sent.
        encoding: The value of ``grpc-encoding``.
        content_length: How many bytes of DATA must come; None if that was not sent.
        refusal: The answer to a request that is not taken; None if it is.

    """

    path: str
    metadata: Metadata = ()
    timeout_s: float | None = None
    encoding: Encoding = Encoding.IDENTITY
    content_length: int | None = None
    refusal: HttpRefusal | ServingError | None = None


_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_SPECIFIC: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
    )
)
# These are read here and not passed on. Any other name that starts with "grpc-" is
# reserved by gRPC.
_READ: Final = frozenset(
    (b"content-type", b"te", b"content-length", b"grpc-timeout", b"grpc-encoding")
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_BAD_VALUE_TEXT: Final = "NUL, CR or LF in a header value"
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]").search
# As many values as the longest header list that we announce has room for. A "-bin"
# header may hold many values of a byte each.
_MAX_METADATA: Final = 512
_TIMEOUT: Final = re.compile(rb"0*([0-9]*)([HMSmun])").fullmatch
_MOST_DIGITS: Final = 20
LONGEST_TIMEOUT_S: Final = 99_999_999 * 3600.0
"""The longest that eight digits can say; more seconds mean as much."""
_UNIT_S: Final = {
    b"H": 3600.0,
    b"M": 60.0,
    b"S": 1.0,
    b"m": 1e-3,
    b"u": 1e-6,
    b"n": 1e-9,
}
_ENCODINGS: Final = {
    b"": Encoding.IDENTITY,
    **{encoding.value.encode(): encoding for encoding in Encoding},
}
_GRPC_TYPE: Final = re.compile(rb"application/grpc(?:\+proto)?(?:[;\s].*)?").fullmatch


_WRONG_METHOD: Final = HttpRefusal(405, "gRPC wants POST")


def parse_timeout(text: bytes) -> float:
    """Returns the seconds in a ``grpc-timeout`` value.

    Raises:
        ValueError: It is not digits and a unit. More than gRPC's eight are taken, as its
            own servers take them.

    """
    match = _TIMEOUT(text)
    if match is None or len(text) < 2:
        raise ValueError("grpc-timeout is not digits and a unit")
    if len(match[1]) > _MOST_DIGITS:
        return LONGEST_TIMEOUT_S
    return min(int(match[1] or b"0") * _UNIT_S[match[2]], LONGEST_TIMEOUT_S)


def parse_head(headers: Sequence[Header], was_cut: bool = False) -> RequestHead:
    """Returns the checked head of a request.

    ``was_cut`` tells that the list was longer than we take; then the rest is
    refused with RESOURCE_EXHAUSTED whatever it says.

    Raises:
        MalformedHead: A pseudo-header is missing, repeated, unknown or late, a name
            is not lower-case or not a token, a value holds NUL, CR or LF, or a
            header belongs to HTTP/1 connections.

    """
    pseudo: dict[bytes, bytes] = {}
    fields: dict[bytes, bytes] = {}
    metadata: list[tuple[str, str | bytes]] = []
    fault: ServingError | None = None
    regular = False
    for name, value in headers:
        if name[:1] == b":":
            if regular:
                raise MalformedHead("pseudo-header after a regular header")
            if name not in _PSEUDO:
                raise MalformedHead("unknown pseudo-header")
            if name in pseudo:
                raise MalformedHead("repeated pseudo-header")
            pseudo[name] = value
        else:
            regular = True
            # These are the checks of _check_header. Clients whose deadlines always
            # differ come here with every request.
            if _NAME(name) is None or name in _CONNECTION_SPECIFIC:
                _check_header(name, value)
            if name in _READ:
                if fields.setdefault(name, value) != value:
                    raise MalformedHead("contradicting repeated header")
            elif name[:5] != b"grpc-":
                fault = _add_metadata(metadata, name, value) or fault
        if _BAD_VALUE(value) is not None:
            raise MalformedHead(_BAD_VALUE_TEXT)
    if fields.get(b"te", b"trailers") != b"trailers":
        raise MalformedHead("te is not trailers")
    if was_cut:
        return RequestHead("", refusal=_too_large())
    return _check(pseudo, fields, tuple(metadata), fault)


def check_trailers(headers: Sequence[Header]) -> None:
    """Checks the headers behind a request's messages, which mean nothing to gRPC.

    Raises:
        MalformedHead: One is a pseudo-header, or no header of HTTP/2.

    """
    for name, value in headers:
        if name[:1] == b":":
            raise MalformedHead("pseudo-header in trailers")
        _check_header(name, value)


def _check_header(name: bytes, value: bytes) -> None:
    if _NAME(name) is None:
        raise MalformedHead("header name is no lower-case token")
    if name in _CONNECTION_SPECIFIC:
        raise MalformedHead("connection-specific header")
    if _BAD_VALUE(value) is not None:
        raise MalformedHead(_BAD_VALUE_TEXT)


def _check(
    pseudo: dict[bytes, bytes],
    fields: dict[bytes, bytes],
    metadata: Metadata,
    fault: ServingError | None,
) -> RequestHead:
    method = pseudo.get(b":method")
    raw_path = pseudo.get(b":path", b"")
    if method == b"CONNECT" and b":authority" in pseudo and len(pseudo) == 2:
        # CONNECT has no path (section 8.5).
        return RequestHead("", refusal=_WRONG_METHOD)
    if method is None or not pseudo.get(b":scheme") or not raw_path:
        raise MalformedHead("missing pseudo-header")
    try:
        path = raw_path.decode("ascii")
    except UnicodeDecodeError:
        raise MalformedHead("path is not ASCII") from None
    content_length = _content_length(fields.get(b"content-length"))
    if method != b"POST":
        return RequestHead(path, refusal=_WRONG_METHOD)
    if _GRPC_TYPE(fields.get(b"content-type", b"")) is None:
        return RequestHead(
            path,
            refusal=HttpRefusal(415, "this port speaks gRPC: application/grpc"),
        )
    if b"te" not in fields:
        return RequestHead(path, refusal=HttpRefusal(400, "gRPC wants te: trailers"))
    if path[0] != "/" or path.rfind("/") == 0:
        fault = Unimplemented(f"malformed method name: {path[:200]!r}")
    timeout_s: float | None = None
    if b"grpc-timeout" in fields:
        try:
            timeout_s = parse_timeout(fields[b"grpc-timeout"])
        except ValueError as error:
            fault = Internal(str(error))
    encoding = _ENCODINGS.get(fields.get(b"grpc-encoding", b""))
    if encoding is None:
        encoding = Encoding.IDENTITY
        fault = Unimplemented(
            "grpc-encoding is not supported; use identity, gzip or deflate"
        )
    return RequestHead(path, metadata, timeout_s, encoding, content_length, fault)


def _content_length(text: bytes | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise MalformedHead("content-length is not a number")
    return int(text)


def _add_metadata(
    metadata: list[tuple[str, str | bytes]], name: bytes, value: bytes
) -> ServingError | None:
    key = name.decode("ascii")
    if not name.endswith(b"-bin"):
        metadata.append((key, value.decode("latin-1")))
        return None
    if len(metadata) + value.count(b",") >= _MAX_METADATA:
        return _too_large()
    for part in value.split(b","):  # several values may share one header
        part = part.strip()
        try:
            raw = base64.b64decode(part + b"=" * (-len(part) % 4), validate=True)
        except binascii.Error:
            return InvalidArgument(f"metadata {key[:200]} is not base64")
        metadata.append((key, raw))
    return None


def _too_large() -> ServingError:
    return ResourceExhausted("request headers are larger than this server takes")
