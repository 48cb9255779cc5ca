"""Compressed messages come back whole, or are refused before they take memory."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from tfs.core.errors import Code, ServingError
from tfs.frontends.budget import LONG_BYTES
from tfs.frontends.inflation import Encoding, measure, unpack

MB = 1 << 20


def decompress(body: bytes, encoding: Encoding, max_bytes: int) -> bytes:
    """Returns what a message unpacks to, as transports ask for it."""
    outcome = measure(body, encoding, max_bytes)
    return unpack(body, encoding, outcome) if isinstance(outcome, int) else outcome


COMPRESS: dict[Encoding, Callable[[bytes], bytes]] = {
    Encoding.GZIP: gzip.compress,
    Encoding.DEFLATE: zlib.compress,
}


@pytest.mark.parametrize("encoding", COMPRESS)
def test_what_was_compressed_comes_back(encoding: Encoding) -> None:
    """A message that is exactly as long as the bound comes back as it was."""
    message = b"x" * 1000
    assert decompress(COMPRESS[encoding](message), encoding, 1000) == message


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("size", [MB, MB + 1, 7 * MB + 3])
@pytest.mark.parametrize("kind", ["noise", "zeros", "both"])
def test_a_large_message_comes_back_too(
    encoding: Encoding, size: int, kind: str
) -> None:
    """A message of any content comes back, unless it is one byte beyond the bound."""
    noise = random.Random(size).randbytes(size)
    message = {
        "noise": noise,
        "zeros": bytes(size),
        "both": noise[: size // 4] + bytes(size - size // 4),
    }[kind]
    body = COMPRESS[encoding](message)
    assert decompress(body, encoding, size) == message
    assert decompress(body, encoding, 1 << 30) == message
    with pytest.raises(ServingError) as caught:
        decompress(body, encoding, size - 1)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize(("size", "bound"), [(1001, 1000), (48 * MB, 1000), (MB, 0)])
def test_a_bomb_stops_at_the_bound(encoding: Encoding, size: int, bound: int) -> None:
    """A message that unpacks beyond the bound is RESOURCE_EXHAUSTED."""
    with pytest.raises(ServingError) as caught:
        decompress(COMPRESS[encoding](bytes(size)), encoding, bound)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_what_is_long_is_only_counted() -> None:
    """Nothing of it is kept before it was admitted."""
    assert measure(gzip.compress(bytes(9 * MB)), Encoding.GZIP, 10 * MB) == 9 * MB
    short = bytes(LONG_BYTES - 1)
    assert measure(gzip.compress(short), Encoding.GZIP, MB) == short
    assert measure(gzip.compress(bytes(LONG_BYTES)), Encoding.GZIP, MB) == LONG_BYTES


def test_a_message_of_nothing_needs_no_stream() -> None:
    """An empty body is an empty message, because some clients do not compress it."""
    assert decompress(b"", Encoding.GZIP, 1000) == b""
    with pytest.raises(ServingError):
        decompress(b"", Encoding.IDENTITY, 1000)


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-4],
        lambda body: body[: len(body) // 2],
        lambda body: body + b"more",
        lambda body: body + bytes(40_000),
        lambda body: body + body,
    ],
    ids=["end", "half", "more", "much more", "twice"],
)
@pytest.mark.parametrize("kind", ["noise", "zeros"])
def test_damage_of_a_large_message_fails_the_call(
    kind: str, damage: Callable[[bytes], bytes]
) -> None:
    """A body has to be one whole stream, wherever it is damaged."""
    size = 9 * MB
    message = random.Random(2).randbytes(size) if kind == "noise" else bytes(size)
    with pytest.raises(ServingError) as caught:
        decompress(damage(gzip.compress(message)), Encoding.GZIP, 2 * size)
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (Encoding.GZIP, gzip.compress(b"x" * 100, mtime=0)[:-4]),
        (Encoding.GZIP, gzip.compress(b"x", mtime=0) + b"more"),
        (Encoding.GZIP, zlib.compress(b"x")),
        (Encoding.DEFLATE, zlib.compress(b"x")[:-2]),
        (Encoding.DEFLATE, zlib.compress(b"x")[2:-4]),
        (Encoding.DEFLATE, gzip.compress(b"x", mtime=0)),
        (Encoding.IDENTITY, gzip.compress(b"x", mtime=0)),
    ],
)
def test_damage_fails_the_call(encoding: Encoding, body: bytes) -> None:
    """A body that is not one whole stream of its encoding is INTERNAL."""
    with pytest.raises(ServingError) as caught:
        decompress(body, encoding, 1000)
    assert caught.value.code is Code.INTERNAL
