"""A header block that is known means what decoding it again would mean."""

from __future__ import annotations

import random

import pytest
from hpack import Encoder

from tests.frontends.express.wire import (
    BLOCK,
    Wire,
    grpc_headers,
    headers_frame,
    literal_block,
)
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import END_HEADERS, END_STREAM, ErrorCode
from tfs.frontends.http2.request_head import RequestHead

INSERTS = Encoder().encode(grpc_headers(("x-a", "1")))


class Heads:
    """A connection that is sent heads, each of a call that is given up at once."""

    def __init__(self) -> None:
        self.wire = Wire(echo=True)
        self._next_id = 1

    def send(self, block: bytes) -> RequestHead | None:
        """Returns what it was taken for; None if its stream was reset."""
        stream_id = self._next_id
        self._next_id += 2
        self.wire.feed_all(headers_frame(stream_id, block))
        stream = self.wire.recorder.opened.get(stream_id)
        if stream is None:
            return None
        if stream_id in self.wire.connection.streams:
            self.wire.reply(stream, b"")
        return stream.head

    @property
    def num_decoded(self) -> int:
        return self.wire.connection.heads.num_decoded


@pytest.mark.parametrize(
    ("between", "num_decoded"),
    [
        (b"", 1),
        (literal_block(grpc_headers(("x-a", "1"))), 2),
        (INSERTS, 3),
        (b"\x20" + BLOCK, 3),
        (b"\x40\x01A\x01b", 3),
    ],
    ids=["nothing", "a literal", "an insertion", "a size update", "a malformed head"],
)
def test_a_block_is_known_until_the_table_changes(
    between: bytes, num_decoded: int
) -> None:
    """Every dynamic index moves then, so equal bytes no longer mean equal headers."""
    heads = Heads()
    heads.send(BLOCK)
    if between:
        heads.send(between)
    heads.send(BLOCK)
    assert heads.num_decoded == num_decoded
    assert not heads.wire.connection.is_closed


def test_a_block_that_inserts_is_not_kept() -> None:
    """Decoding it again changes the table again."""
    heads = Heads()
    for _ in range(3):
        heads.send(INSERTS)
    assert heads.num_decoded == 3


@pytest.mark.parametrize("name", [b"a", b"A"])
def test_trailers_that_insert_change_the_table_too(name: bytes) -> None:
    """Like any other block, malformed ones as well."""
    heads = Heads()
    heads.send(BLOCK)
    heads.wire.feed(headers_frame(3))
    trailers = b"\x40\x01" + name + b"\x01b"
    heads.wire.feed(headers_frame(3, trailers, END_HEADERS | END_STREAM))
    heads.wire.feed(headers_frame(5))
    assert heads.num_decoded == 2


def test_a_known_head_is_no_trailers() -> None:
    """Pseudo-headers come first or never, be the block known or not."""
    wire = Wire()
    wire.feed(headers_frame(1) + headers_frame(1, BLOCK, END_HEADERS | END_STREAM))
    assert wire.answer(1).reset is ErrorCode.PROTOCOL_ERROR


def test_what_is_kept_is_bounded() -> None:
    """Ever new blocks, or large ones, do not make it grow."""
    heads = Heads()
    known = heads.wire.connection.heads.heads
    for index in range(2000):
        heads.send(literal_block(grpc_headers(("x-n", str(index)))))
        assert len(known) <= 300
    for index in range(20):
        heads.send(literal_block(grpc_headers(("x-n", "v" * 9000 + str(index)))))
    assert len(known) <= 4


@pytest.mark.parametrize("seed", range(3))
def test_known_heads_equal_decoded_ones(seed: int) -> None:
    """Over long random contexts, looking up and decoding never disagree."""
    rng = random.Random(seed)
    encoder, heads = Encoder(), Heads()
    for _ in range(400):
        if rng.random() < 0.02:
            encoder.header_table_size = rng.choice([0, 200, 4096])
        note, timeout = rng.choice("abc"), rng.randrange(4)
        headers = grpc_headers(("x-a", note), ("grpc-timeout", f"{timeout}S"))
        block = encoder.encode([(*each, rng.random() < 0.4) for each in headers])
        head = heads.send(block)
        assert head is not None
        assert head.metadata == (("x-a", note),)
        assert head.timeout_s == timeout


def test_each_block_in_pieces_may_have_as_many_as_the_first() -> None:
    """Neither bytes nor the number of pieces are left of the one before."""
    wire = Wire(echo=True)
    most = wire.connection.state.limits.max_continuations
    for stream_id in (1, 3):
        wire.feed(headers_frame(stream_id, BLOCK, flags=0))
        for index in range(most):
            flags = END_HEADERS if index == most - 1 else 0
            wire.feed(frames.frame(9, flags, stream_id, b""))
        assert stream_id in wire.connection.streams
    assert wire.connection.unfinished_bytes == 0
