"""Response headers and trailers, encoded once.

All header fields are literals that enter no dynamic table, so the blocks are
constants and stay right whatever table size the client allows.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Final

from tfs.core.errors import Code, ServingError
from tfs.frontends.http2.frames import (
    END_HEADERS,
    END_STREAM,
    FrameType,
    frame,
    frame_head,
)
from tfs.frontends.http2.hpack_decoder import encode_literal
from tfs.frontends.http2.request_head import HttpRefusal
from tfs.frontends.status_details import (
    DETAILS_KEY,
    percent_encode,
    status_details,
    wire_message,
)

_NO_TABLE: Final = b"\x20"
"""Begins the block that opens a response. It sets the size of our encoder's dynamic table,
which we never use, to 0: whatever smaller size the client has asked for has to be answered
so (RFC 9113 section 4.3.1), or it closes the connection."""

_STATUS_200 = b"\x88"  # static table, index 8
_CONTENT_TYPE = encode_literal(b"content-type", b"application/grpc")
_ACCEPT_ENCODING = encode_literal(b"grpc-accept-encoding", b"identity,gzip,deflate")

HEAD_BLOCK: Final = _NO_TABLE + _STATUS_200 + _CONTENT_TYPE
OK_TRAILERS_BLOCK: Final = encode_literal(b"grpc-status", b"0")

_HEAD_FIELD = frame_head(FrameType.HEADERS, END_HEADERS, 0, len(HEAD_BLOCK))[:5]
_TRAILERS_FIELD = frame_head(
    FrameType.HEADERS, END_HEADERS | END_STREAM, 0, len(OK_TRAILERS_BLOCK)
)[:5]
_pack_before = struct.Struct(f">5sI{len(HEAD_BLOCK)}sIBIBI").pack
_pack_after = struct.Struct(f">5sI{len(OK_TRAILERS_BLOCK)}s").pack

SMALL_BYTES: Final = 4096
"""Longest message that is sent as one piece with its headers and trailers."""

# Keyed by the message's length, which is at most SMALL_BYTES, so its size is bounded.
# Loop-confined.
_pack_whole: Final[dict[int, Callable[..., bytes]]] = {}


def _make_pack_whole(size: int) -> Callable[..., bytes]:
    pack = struct.Struct(
        f">5sI{len(HEAD_BLOCK)}sIBIBI{size}s5sI{len(OK_TRAILERS_BLOCK)}s"
    ).pack
    _pack_whole[size] = pack
    return pack


def small_reply(stream_id: int, message: bytes) -> bytes:
    """Returns a whole answer: a message of at most ``SMALL_BYTES``, and OK."""
    size = len(message)
    pack = _pack_whole.get(size) or _make_pack_whole(size)
    return pack(
        _HEAD_FIELD,
        stream_id,
        HEAD_BLOCK,
        size + 5 << 8,
        0,
        stream_id,
        0,
        size,
        message,
        _TRAILERS_FIELD,
        stream_id,
        OK_TRAILERS_BLOCK,
    )


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
    message = wire_message(error)
    parts = [HEAD_BLOCK] if trailers_only else []
    parts.append(encode_literal(b"grpc-status", str(int(error.code)).encode()))
    if message:
        parts.append(encode_literal(b"grpc-message", percent_encode(message)))
    if error.code is Code.UNIMPLEMENTED:
        # The request's encoding may be what is unsupported.
        parts.append(_ACCEPT_ENCODING)
    details = status_details(error)
    if details is not None:
        text = base64.b64encode(details).rstrip(b"=")
        parts.append(encode_literal(DETAILS_KEY.encode(), text))
    return b"".join(parts)


def http_refusal(refusal: HttpRefusal) -> bytes:
    """Returns the header block of a plain HTTP answer to what is not gRPC."""
    block = _NO_TABLE + encode_literal(b":status", str(refusal.status).encode())
    if refusal.status == 405:
        block += encode_literal(b"allow", b"POST")
    return block + encode_literal(b"grpc-message", percent_encode(refusal.text))


HTTP_1_ANSWER: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: 35\r\n"
    b"connection: close\r\n"
    b"\r\n"
    b"this port speaks gRPC over HTTP/2.\n"
)
"""What a client gets that speaks HTTP/1 to us."""
