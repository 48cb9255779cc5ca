"""gRPC messages are found however DATA cuts them, in room that follows what arrived."""

from __future__ import annotations

import mmap
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.express.wire import prefixed
from tfs.core.errors import Code, ServingError
from tfs.frontends.rpc.express.http2.messages import MessageAssembler


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
    """Its prefix is enough to refuse it, before any of its body has arrived."""
    with pytest.raises(ServingError) as caught:
        list(MessageAssembler(10).feed(memoryview(b"\0\0\0\0\x0b")))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_an_unknown_flag_is_refused() -> None:
    """Only 0 and 1 are defined."""
    with pytest.raises(ServingError) as caught:
        list(MessageAssembler(10).feed(memoryview(b"\x02\0\0\0\0")))
    assert caught.value.code is Code.INTERNAL


def test_room_follows_what_arrived_not_what_is_announced() -> None:
    """A prefix that promises 60 MB costs nothing; later room is four times the bytes."""
    assembler = MessageAssembler(64 << 20)
    list(assembler.feed(memoryview(b"\0\x03\x93\x87\x00")))
    arrived = 0
    for _ in range(500):
        list(assembler.feed(memoryview(bytes(1000))))
        arrived += 1000
        assert assembler._body is not None
        assert len(assembler._body) <= max(256, 4 * arrived)


def test_large_messages_arrive_as_they_were_sent() -> None:
    """A large message arrives intact through every size that its pages take."""
    body = bytes(range(251)) * 20_000
    data = memoryview(prefixed(body))
    assembler = MessageAssembler(1 << 23)
    found = [
        bytes(message)
        for start in range(0, len(data), 10_007)
        for _, message in assembler.feed(data[start : start + 10_007])
    ]
    assert found == [body]


def test_a_claim_takes_no_memory_of_its_own() -> None:
    """An announced length takes no memory before a byte of the message has come."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assemblers = [MessageAssembler(1 << 30) for _ in range(1000)]
        for assembler in assemblers:
            assert list(assembler.feed(memoryview(b"\0\0\x10\0\0"))) == []
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000


def test_the_beginning_of_a_large_message_is_not_in_the_heap() -> None:
    """A crowd's beginnings, grown and moved, left it full of holes."""
    assembler = MessageAssembler(1 << 30)
    assert list(assembler.feed(memoryview(prefixed(bytes(2 << 20))[:20_000]))) == []
    body = assembler._body
    assert body is not None
    assert isinstance(body.obj, mmap.mmap)


def test_what_arrived_of_a_large_message_is_what_it_takes() -> None:
    """An unfinished message takes what has arrived of it, rounded up to a page."""
    assembler = MessageAssembler(1 << 30)
    data = memoryview(prefixed(bytes(2 << 20))[:48_000])
    for start in range(0, len(data), 16_384):
        list(assembler.feed(data[start : start + 16_384]))
    assert assembler._body is not None
    assert isinstance(assembler._body.obj, mmap.mmap)
    assert assembler._ready <= 48_000 + mmap.PAGESIZE
