"""A cached header block means what decoding it again would mean."""

from __future__ import annotations

import contextlib
import random

import pytest
from hpack import Decoder, Encoder

from tests.frontends.express.wire import grpc_headers, literal_block
from tfs.frontends.http2.frames import ConnectionFault
from tfs.frontends.http2.head_cache import HeadCache
from tfs.frontends.http2.hpack_decoder import HpackDecoder
from tfs.frontends.http2.request_head import MalformedHead, parse_head

PLAIN = literal_block(grpc_headers())


def test_a_block_that_leaves_the_table_alone_is_kept() -> None:
    """The second time the same head comes without decoding."""
    cache = HeadCache(HpackDecoder(), parse_head)
    head = cache.decode(PLAIN)
    assert cache.by_block[PLAIN] is head


def test_a_block_that_inserts_is_not_kept() -> None:
    """Decoding it again would change the table again."""
    cache = HeadCache(HpackDecoder(), parse_head)
    block = Encoder().encode(grpc_headers(("x-a", "1")))
    cache.decode(block)
    assert block not in cache.by_block


def test_an_insertion_empties_the_cache() -> None:
    """Every dynamic index moves, so equal bytes no longer mean equal headers."""
    cache = HeadCache(HpackDecoder(), parse_head)
    cache.decode(PLAIN)
    cache.decode(Encoder().encode(grpc_headers(("x-a", "1"))))
    assert cache.by_block == {}


def test_a_size_update_empties_the_cache() -> None:
    """It may have evicted what a block refers to."""
    cache = HeadCache(HpackDecoder(), parse_head)
    cache.decode(PLAIN)
    cache.decode(b"\x20" + PLAIN)
    assert cache.by_block == {}


@pytest.mark.parametrize("is_good", [True, False])
def test_trailers_that_insert_empty_the_cache(is_good: bool) -> None:
    """They change the table like any other block, malformed ones too."""
    cache = HeadCache(HpackDecoder(), parse_head)
    cache.decode(PLAIN)
    block = b"\x40\x01a\x01b" if is_good else b"\x40\x01A\x01b"
    with contextlib.nullcontext() if is_good else pytest.raises(MalformedHead):
        cache.decode_trailers(block)
    assert cache.by_block == {}


def test_a_head_is_no_trailers() -> None:
    """Pseudo-headers come first or never, be the block known or not."""
    cache = HeadCache(HpackDecoder(), parse_head)
    for _ in range(2):
        with pytest.raises(MalformedHead):
            cache.decode_trailers(PLAIN)
        cache.decode(PLAIN)


def test_a_malformed_head_is_not_kept_but_its_insertions_count() -> None:
    """HPACK is in step although the stream is reset."""
    cache = HeadCache(HpackDecoder(), parse_head)
    cache.decode(PLAIN)
    with pytest.raises(MalformedHead):
        cache.decode(b"\x40\x01A\x01b")
    assert cache.by_block == {}


def test_the_cache_is_bounded_by_what_it_holds() -> None:
    """Ever new blocks, or large ones, do not make it grow."""
    cache = HeadCache(HpackDecoder(), parse_head, max_bytes=10_000)
    for index in range(500):
        cache.decode(literal_block(grpc_headers(("x-n", str(index)))))
        assert len(cache.by_block) <= 40
    cache.decode(literal_block(grpc_headers(("x-n", "v" * 9_000))))
    assert len(cache.by_block) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_cached_heads_equal_decoded_ones(seed: int) -> None:
    """Over long random contexts, looking up and decoding never disagree."""
    rng = random.Random(seed)
    encoder, oracle, cache = Encoder(), Decoder(), HeadCache(HpackDecoder(), parse_head)
    for _ in range(400):
        if rng.random() < 0.02:
            encoder.header_table_size = rng.choice([0, 200, 4096])
        headers = [
            (name, value, rng.random() < 0.4)
            for name, value in grpc_headers(
                ("x-a", rng.choice("abc")), ("grpc-timeout", f"{rng.randrange(4)}S")
            )
        ]
        block = encoder.encode(headers)
        expected = {str(n): str(v) for n, v in oracle.decode(block)}
        head = cache.by_block.get(block) or cache.decode(block)
        assert dict(head.metadata)["x-a"] == expected["x-a"]
        assert head.timeout_s == int(expected["grpc-timeout"][:-1])


def test_an_hpack_fault_passes_through() -> None:
    """The connection must close; the cache does not hide it."""
    with pytest.raises(ConnectionFault):
        HeadCache(HpackDecoder(), parse_head).decode(b"\x80")
