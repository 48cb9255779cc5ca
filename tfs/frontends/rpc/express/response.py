"""Response headers and trailers, encoded once.

All header fields are literals that enter no dynamic table, so the blocks are
constants and stay right whatever table size the client allows.
"""

from __future__ import annotations

import base64
import struct
from typing import Final

from tfs.core.errors import Code, ServingError
from tfs.frontends.rpc.express.frames import (
    END_HEADERS,
    END_STREAM,
    FrameType,
    frame,
    frame_head,
)
from tfs.frontends.rpc.express.hpack_decoder import encode_literal
from tfs.frontends.rpc.express.request_head import HttpRefusal

_STATUS_200 = b"\x88"  # static table, index 8
_CONTENT_TYPE = encode_literal(b"content-type", b"application/grpc")
_ACCEPT_ENCODING = encode_literal(b"grpc-accept-encoding", b"identity,gzip")
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"

HEAD_BLOCK: Final = _STATUS_200 + _CONTENT_TYPE
OK_TRAILERS_BLOCK: Final = encode_literal(b"grpc-status", b"0")

MAX_MESSAGE_CHARS: Final = 1024
# Clients take about 8 KB of headers; the message travels twice, once in base64.
_MAX_MESSAGE_BYTES: Final = 2048
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}

_HEAD_FIELD = frame_head(FrameType.HEADERS, END_HEADERS, 0, len(HEAD_BLOCK))[:5]
_TRAILERS_FIELD = frame_head(
    FrameType.HEADERS, END_HEADERS | END_STREAM, 0, len(OK_TRAILERS_BLOCK)
)[:5]
_pack_before = struct.Struct(f">5sI{len(HEAD_BLOCK)}sIBIBI").pack
_pack_after = struct.Struct(f">5sI{len(OK_TRAILERS_BLOCK)}s").pack


def before_message(stream_id: int, size: int) -> bytes:
    """Returns all that precedes a message sent in one DATA frame.

    That is the HEADERS frame, the DATA frame's head and the five-byte prefix.
    """
    return _pack_before(
        _HEAD_FIELD, stream_id, HEAD_BLOCK, size + 5 << 8, 0, stream_id, 0, size
    )


def ok_trailers(stream_id: int) -> bytes:
    """Returns the HEADERS frame that ends a call with OK."""
    return _pack_after(_TRAILERS_FIELD, stream_id, OK_TRAILERS_BLOCK)


def headers(stream_id: int) -> bytes:
    """Returns the HEADERS frame that opens a response."""
    return frame(FrameType.HEADERS, END_HEADERS, stream_id, HEAD_BLOCK)


def trailers(stream_id: int, block: bytes) -> bytes:
    """Returns the HEADERS frame that ends a stream."""
    return frame(FrameType.HEADERS, END_HEADERS | END_STREAM, stream_id, block)


def error_block(error: ServingError, trailers_only: bool) -> bytes:
    """Returns the header block that tells of ``error``.

    ``trailers_only`` says that no response headers were sent before.
    """
    message = clip(error.message)
    parts = [HEAD_BLOCK] if trailers_only else []
    parts.append(encode_literal(b"grpc-status", str(int(error.code)).encode()))
    if message:
        parts.append(encode_literal(b"grpc-message", percent_encode(message)))
    if error.code is Code.UNIMPLEMENTED:
        parts.append(_ACCEPT_ENCODING)  # it may have been the encoding
    if error.retry_after_s is not None:
        details = status_details(error.code, message, error.retry_after_s)
        text = base64.b64encode(details).rstrip(b"=")
        parts.append(encode_literal(b"grpc-status-details-bin", text))
    return b"".join(parts)


def clip(message: str) -> bytes:
    """Returns the message in UTF-8, cut at 1,024 characters and about 2 KB."""
    text = message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace")
    if len(text) > _MAX_MESSAGE_BYTES:
        text = text[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore").encode()
    return text


def percent_encode(text: bytes) -> bytes:
    """Returns ``text`` as ``grpc-message`` wants it: printable ASCII without %."""
    if all(byte in _PLAIN for byte in text):
        return text
    encoded = b"".join(
        bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in text
    )
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return encoded
    cut = encoded[:_MAX_MESSAGE_BYTES]
    tail = cut.rfind(b"%")
    return cut[:tail] if tail > len(cut) - 3 else cut


def status_details(code: Code, message: bytes, retry_after_s: float) -> bytes:
    """Returns a serialised ``google.rpc.Status`` that carries a ``RetryInfo``."""
    nanos = max(0, round(retry_after_s * 1e9))
    duration = _integer_field(1, nanos // 10**9) + _integer_field(2, nanos % 10**9)
    any_message = _bytes_field(1, _RETRY_INFO) + _bytes_field(
        2, _bytes_field(1, duration)
    )
    return (
        _integer_field(1, int(code))
        + _bytes_field(2, message)
        + _bytes_field(3, any_message)
    )


def _integer_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value) if value else b""


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def http_refusal(refusal: HttpRefusal) -> tuple[bytes, bytes]:
    """Returns header block and body of a plain HTTP answer to what is not gRPC."""
    body = refusal.text.encode() + b"\n"
    block = (
        encode_literal(b":status", str(refusal.status).encode())
        + encode_literal(b"content-type", b"text/plain; charset=utf-8")
        + encode_literal(b"content-length", str(len(body)).encode())
    )
    return block, body


HTTP_1_ANSWER: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: 41\r\n"
    b"connection: close\r\n"
    b"\r\n"
    b"this port speaks gRPC over HTTP/2 (h2c).\n"
)
"""What a client gets that speaks HTTP/1 to us."""
