"""Header blocks that no good client sends, to try a server with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import hpack

from tests.frontends.express.wire import HELLO, data_frame, grpc_headers
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PRIORITIZED,
    FrameType,
)
from tfs.frontends.http2.hpack_decoder import encode_literal

_Header = tuple[bytes, bytes]

_NAMES: Final = (
    b":authority",
    b":method",
    b":path",
    b":scheme",
    b":status",
    b":x",
    b"",
    b"A",
    b"\0",
    b"\xff",
    b"a b",
    b"connection",
    b"content-length",
    b"content-type",
    b"cookie",
    b"endpoint-load-metrics-bin",
    b"grpc-accept-encoding",
    b"grpc-encoding",
    b"grpc-internal-encoding-request",
    b"grpc-message",
    b"grpc-previous-rpc-attempts",
    b"grpc-retry-pushback-ms",
    b"grpc-server-stats-bin",
    b"grpc-status",
    b"grpc-tags-bin",
    b"grpc-timeout",
    b"grpc-trace-bin",
    b"host",
    b"lb-cost-bin",
    b"te",
    b"user-agent",
    b"x-a",
    b"x-bin",
    b"x\xff-bin",
)
_VALUES: Final = (
    b"",
    b"\0",
    b"\0abc",
    b"\r\n",
    b"\xff",
    b"\xff" * 300,
    b"\xed\xa0\x80",
    b"!!!!",
    b"-1S",
    b"/",
    b"/\xff",
    b"/a/\0",
    b"0n",
    b"99999999H",
    b"9" * 40 + b"S",
    b"AA",
    b"a" * 9000,
    b"abc",
    b"application/grpc+\xff",
    b"deflate",
    b"gzip",
    b"trailers",
    b"\xc3\xa4".decode().encode("latin-1"),
)
_LARGEST_PIECE: Final = 16_384


def _headers(rng: random.Random, path: str) -> list[_Header]:
    headers = [
        (name.encode(), value.encode()) for name, value in grpc_headers(path=path)
    ]
    for _ in range(rng.randrange(4)):
        index = rng.randrange(len(headers))
        name, value = headers[index]
        match rng.randrange(6):
            case 0:
                headers[index] = name, rng.choice(_VALUES)
            case 1:
                headers[index] = name, rng.randbytes(rng.randrange(12))
            case 2:
                headers.insert(index, (rng.choice(_NAMES), rng.choice(_VALUES)))
            case 3:
                headers.append((rng.choice(_NAMES), rng.choice(_VALUES)))
            case 4:
                headers.insert(index, (name, value))
            case 5:
                del headers[index]
                headers.append((name, value))
    return headers


def _block(rng: random.Random, encoder: hpack.Encoder, headers: list[_Header]) -> bytes:
    parts = []
    for name, value in headers:
        match rng.randrange(3):
            case 0:
                parts.append(encode_literal(name, value))
            case 1:
                parts.append(encoder.add((name, value), sensitive=False))
            case 2:
                parts.append(encoder.add((name, value), sensitive=False, huffman=True))
    block = bytearray(b"".join(parts))
    if not rng.randrange(6):
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(block))
            match rng.randrange(3):
                case 0:
                    block[place] = rng.randrange(256)
                case 1:
                    del block[place]
                case 2:
                    block.insert(place, rng.choice(b"\x20\x3e\x3f\x80\xbe\xbf\xff"))
    return bytes(block)


def _frames(rng: random.Random, stream_id: int, block: bytes) -> bytes:
    flags = END_HEADERS | rng.choice([0] * 9 + [END_STREAM])
    if not rng.randrange(8):
        flags |= PRIORITIZED
        block = bytes(4) + b"\x10" + block
    if not rng.randrange(8):
        flags |= PADDED
        num_bytes = rng.randrange(4)
        block = bytes((num_bytes,)) + block + rng.randbytes(num_bytes)
    size = rng.choice([_LARGEST_PIECE] * 4 + [max(1, len(block) // 2)])
    pieces = [block[at : at + size] for at in range(0, len(block), size)] or [b""]
    kind, sent = FrameType.HEADERS, b""
    for index, piece in enumerate(pieces):
        is_last = index == len(pieces) - 1
        now = flags if is_last else flags & ~END_HEADERS
        sent += frames.frame(kind, now, stream_id, piece)
        kind, flags = FrameType.CONTINUATION, END_HEADERS
    return sent + data_frame(stream_id, bytes(5))


def conversations(seed: int, path: str, num_calls: int) -> Iterator[bytes]:
    """Yields what clients send over a connection each: up to a dozen calls, and a PING.

    Args:
        seed: What is sent depends on it alone.
        path: The method that is called if nothing else is.
        num_calls: How many calls all of them have.

    """
    rng = random.Random(seed)
    while num_calls > 0:
        encoder = hpack.Encoder()
        sent = HELLO
        num_here = min(num_calls, rng.randrange(1, 13))
        num_calls -= num_here
        for index in range(num_here):
            block = _block(rng, encoder, _headers(rng, path))
            sent += _frames(rng, 2 * index + 1, block)
        yield sent + frames.ping(b"are you?")
