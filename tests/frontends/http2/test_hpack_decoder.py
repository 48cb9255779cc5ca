"""Our HPACK decoder against the hpack library, and against bombs."""

from __future__ import annotations

import functools
import random

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given, settings
from hypothesis import strategies as st

from tfs.frontends.http2.frames import ConnectionFault, ErrorCode
from tfs.frontends.http2.hpack_decoder import HpackDecoder, encode_literal

NAMES = [b":path", b":method", b"te", b"x-a", b"grpc-timeout", b"user-agent", b"k" * 90]
VALUES = [
    b"",
    b"POST",
    b"/",
    b"1S",
    b"trailers",
    b"v" * 200,
    b"\xff\x00binary",
    b"z" * 3000,
]


def oracle(table_bytes: int = 4096) -> Decoder:
    decoder = Decoder(max_header_list_size=1 << 24)
    decoder.max_allowed_table_size = table_bytes
    return decoder


def decode_both(
    ours: HpackDecoder, theirs: Decoder, block: bytes
) -> list[tuple[bytes, bytes]] | None:
    """Decodes with both; returns the headers, None if both refuse; else fails."""
    try:
        expected = [
            (bytes(name), bytes(value))
            for name, value in theirs.decode(block, raw=True)
        ]
    except (HPACKError, IndexError):
        expected = None
    try:
        found = ours.decode(block)
    except ConnectionFault as fault:
        found = None
        if fault.code is not ErrorCode.COMPRESSION_ERROR:
            raise
    assert found == expected, block.hex()
    if found is not None:
        assert ours.table_bytes == theirs.header_table._current_size
    return found


def random_block(rng: random.Random, encoder: Encoder) -> bytes:
    """Returns a valid block: indexed, literal, never-indexed, Huffman or not."""
    parts = []
    if rng.random() < 0.05:
        encoder.header_table_size = rng.choice([0, 64, 100, 500, 4096])
    headers = [
        (rng.choice(NAMES), rng.choice(VALUES), rng.random() < 0.3)
        for _ in range(rng.randrange(6))
    ]
    parts.append(encoder.encode(headers, huffman=rng.random() < 0.5))
    parts += [
        encode_literal(rng.choice(NAMES), rng.choice(VALUES))
        for _ in range(rng.randrange(3))
    ]
    return b"".join(parts)


def run_differential(seed: int, num_blocks: int, mutate: float) -> int:
    """Feeds both decoders the same blocks; returns how many both accepted."""
    rng = random.Random(seed)
    num_accepted = 0
    left = 0
    for _ in range(num_blocks):
        if left == 0:
            left = rng.randrange(1, 40)
            encoder = Encoder()
            ours, theirs = HpackDecoder(max_list_bytes=1 << 24), oracle()
        left -= 1
        block = random_block(rng, encoder)
        if rng.random() < mutate:
            damaged = bytearray(block)
            for _ in range(rng.randrange(1, 4)):
                if damaged:
                    where = rng.randrange(len(damaged))
                    what = rng.randrange(3)
                    if what == 0:
                        damaged[where] = rng.randrange(256)
                    elif what == 1:
                        del damaged[where]
                    else:
                        damaged.insert(where, rng.randrange(256))
            block = bytes(damaged)
            left = 0  # their tables may differ after a fault, and from the encoder's
        if decode_both(ours, theirs, block) is not None:
            num_accepted += 1
    return num_accepted


def test_valid_blocks_decode_as_in_the_library() -> None:
    """Same headers, same table size, over contexts that insert, evict and resize."""
    assert run_differential(seed=1, num_blocks=1000, mutate=0.0) == 1000


def test_damaged_blocks_are_judged_as_in_the_library() -> None:
    """Both accept with equal results, or both refuse."""
    assert 0 < run_differential(seed=2, num_blocks=1000, mutate=0.9) < 1000


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(10))
def test_a_million_blocks_decode_as_in_the_library(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """The differential test at the length the decoder was promised with.

    The library remembers what it made of a string by Huffman's code: the strings are
    the same over and over, and took it twice as long as all the rest. Ours does not.
    """
    coder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    remembers = functools.lru_cache(1000)
    encoded = remembers(coder.encode)
    monkeypatch.setattr(HuffmanEncoder, "encode", lambda _, text: encoded(text))
    monkeypatch.setattr("hpack.hpack.decode_huffman", remembers(decode_huffman))
    assert 0 < run_differential(3 + part, num_blocks=100_000, mutate=0.5) < 100_000


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_judged_as_in_the_library(block: bytes) -> None:
    """No input makes the two disagree or raises anything but a fault."""
    decode_both(HpackDecoder(max_list_bytes=1 << 24), oracle(), block)


def test_rfc_7541_appendix_c4_decodes() -> None:
    """The RFC's own example: three requests on one connection, Huffman coded."""
    decoder = HpackDecoder()
    blocks = [
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ]
    lists = [decoder.decode(bytes.fromhex(block)) for block in blocks]
    assert lists[0][-1] == (b":authority", b"www.example.com")
    assert lists[1][-1] == (b"cache-control", b"no-cache")
    assert lists[2][-1] == (b"custom-key", b"custom-value")
    assert decoder.table_bytes == 164


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xff\x00",  # index 127, in no table
        b"\xbe",  # the first dynamic entry, of none
        b"\x7e\x00\x00",  # a literal that borrows an unknown name
        b"\x00\x05ab",  # truncated name
        b"\x00\x01a\x7f",  # truncated length
        b"\xff\xff\xff\xff\xff\xff\xff\x01",  # an integer without end
        b"\x3f\xe2\x1f",  # table size 4097
        b"\x82\x20",  # size update behind a header
        b"\x00\x81\xff\x00",  # Huffman padding of eight bits
    ],
)
def test_a_block_that_breaks_the_rules_is_a_compression_error(block: bytes) -> None:
    """Whatever is wrong, the connection closes with the code for it."""
    with pytest.raises(ConnectionFault) as caught:
        HpackDecoder().decode(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_generation_moves_with_every_change_of_the_table() -> None:
    """Insertion, eviction and size update count; reading does not."""
    decoder = HpackDecoder()
    decoder.decode(b"\x82\x86" + encode_literal(b"a", b"b"))
    assert decoder.generation == 0
    decoder.decode(b"\x40\x01a\x01b")
    after_insertion = decoder.generation
    assert after_insertion > 0
    decoder.decode(b"\xbe")
    assert decoder.generation == after_insertion
    decoder.decode(b"\x20")
    assert decoder.generation > after_insertion
    assert decoder.table_bytes == 0


def test_an_entry_larger_than_the_table_empties_it() -> None:
    """RFC 7541 section 4.4: no error, nothing is inserted, all is evicted."""
    decoder = HpackDecoder(max_table_bytes=100)
    decoder.decode(b"\x40\x01a\x01b")
    decoder.decode(b"\x40\x01a\x7f\x01" + b"x" * 128)
    assert decoder.table_bytes == 0


def test_a_long_list_is_cut_and_the_table_stays_in_step() -> None:
    """Beyond the list limit headers are left out, but insertions still happen."""
    decoder = HpackDecoder(max_list_bytes=300)
    headers = decoder.decode(encode_literal(b"a", b"x" * 200) * 3 + b"\x40\x01k\x01v")
    assert len(headers) == 1
    assert decoder.was_cut
    assert decoder.decode(b"\xbe") == [(b"k", b"v")]
    assert not decoder.was_cut


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 5000, 70_000])
def test_our_literals_decode_at_every_length(size: int) -> None:
    """Lengths around the prefix boundaries are encoded as RFC 7541 section 5.1."""
    block = encode_literal(b"n", b"v" * size)
    assert oracle().decode(block, raw=True) == [(b"n", b"v" * size)]


def test_a_block_of_table_size_updates_is_a_nuisance() -> None:
    """Two make sense, a few are a clumsy client, thousands are work for nothing."""
    decoder = HpackDecoder()
    assert decoder.decode(b"\x20\x3f\xe1\x1f" * 8 + b"\x82") == [(b":method", b"GET")]
    with pytest.raises(ConnectionFault) as raised:
        decoder.decode(b"\x20" * 17 + b"\x82")
    assert raised.value.code is ErrorCode.ENHANCE_YOUR_CALM
