"""gRPC messages are found however DATA cuts them, and never expand without bound."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.express.wire import prefixed
from tfs.core.errors import Code, ServingError
from tfs.frontends.rpc.express.messages import MessageAssembler, decompress
from tfs.frontends.rpc.express.request_head import Encoding


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=5),
    st.lists(st.integers(min_value=1, max_value=30), min_size=1),
)
def test_any_split_yields_the_same_messages(
    messages: list[tuple[bytes, bool]], sizes: list[int]
) -> None:
    """Prefixes and bodies may be cut anywhere, several may share a chunk."""
    data = b"".join(prefixed(body, flag) for body, flag in messages)
    assembler = MessageAssembler(1000)
    found = []
    index = turn = 0
    while index < len(data):
        size = sizes[turn % len(sizes)]
        chunk = memoryview(data)[index : index + size]
        found += [(bytes(body), flag) for flag, body in assembler.feed(chunk)]
        index += size
        turn += 1
    assert found == messages
    assert assembler.is_between_messages


def test_an_unfinished_message_is_noticed() -> None:
    """The end of the stream may come too early, within prefix or body."""
    assembler = MessageAssembler(1000)
    for byte in prefixed(b"abc")[:-1]:
        assert list(assembler.feed(memoryview(bytes((byte,))))) == []
        assert not assembler.is_between_messages


def test_a_message_too_long_is_refused_by_its_prefix() -> None:
    """Before any of its body arrived."""
    with pytest.raises(ServingError) as caught:
        list(MessageAssembler(10).feed(memoryview(b"\0\0\0\0\x0b")))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_an_unknown_flag_is_refused() -> None:
    """Only 0 and 1 are defined."""
    with pytest.raises(ServingError) as caught:
        list(MessageAssembler(10).feed(memoryview(b"\x02\0\0\0\0")))
    assert caught.value.code is Code.INTERNAL


COMPRESS: dict[Encoding, Callable[[bytes], bytes]] = {
    Encoding.GZIP: gzip.compress,
    Encoding.DEFLATE: zlib.compress,
}


@pytest.mark.parametrize("encoding", COMPRESS)
def test_what_was_compressed_comes_back(encoding: Encoding) -> None:
    """The message is what was compressed, up to the bound exactly."""
    message = b"x" * 1000
    assert decompress(COMPRESS[encoding](message), encoding, 1000) == message


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("size", [1001, 50 << 20])
def test_a_bomb_stops_at_the_bound(encoding: Encoding, size: int) -> None:
    """What it would have grown to is never in memory."""
    with pytest.raises(ServingError) as caught:
        decompress(COMPRESS[encoding](bytes(size)), encoding, 1000)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (Encoding.GZIP, gzip.compress(b"x" * 100, mtime=0)[:-4]),
        (Encoding.GZIP, gzip.compress(b"x", mtime=0) + b"more"),
        (Encoding.GZIP, zlib.compress(b"x")),
        (Encoding.GZIP, b""),
        (Encoding.DEFLATE, zlib.compress(b"x")[:-2]),
        (Encoding.DEFLATE, zlib.compress(b"x")[2:-4]),
        (Encoding.DEFLATE, gzip.compress(b"x", mtime=0)),
        (Encoding.IDENTITY, gzip.compress(b"x", mtime=0)),
    ],
)
def test_damage_fails_the_call(encoding: Encoding, body: bytes) -> None:
    """Truncated, trailing bytes, another encoding, none at all."""
    with pytest.raises(ServingError) as caught:
        decompress(body, encoding, 1000)
    assert caught.value.code is Code.INTERNAL


def test_room_follows_what_arrived_not_what_is_announced() -> None:
    """A prefix that promises 60 MB costs 64 KB; later room is four times the bytes."""
    assembler = MessageAssembler(64 << 20)
    list(assembler.feed(memoryview(b"\0\x03\x93\x87\x00")))
    arrived = 0
    for _ in range(500):
        list(assembler.feed(memoryview(bytes(1000))))
        arrived += 1000
        assert assembler._body is not None
        assert len(assembler._body) <= max(65_536, 4 * arrived)
