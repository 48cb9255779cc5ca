"""gRPC messages are found however DATA cuts them."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.express.wire import prefixed
from tfs.core.errors import Code, ServingError
from tfs.frontends.http2.stream import Upload


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=5),
    st.lists(st.integers(min_value=1, max_value=30), min_size=1),
)
def test_any_split_yields_the_same_messages(
    messages: list[tuple[bytes, bool]], sizes: list[int]
) -> None:
    """Prefixes and bodies may be cut anywhere, several may share a chunk."""
    data = b"".join(prefixed(body, flag) for body, flag in messages)
    upload = Upload(1000)
    found = []
    index = turn = 0
    while index < len(data):
        size = sizes[turn % len(sizes)]
        chunk = memoryview(data)[index : index + size]
        found += [(bytes(body), flag) for flag, body in upload.feed(chunk)]
        index += size
        turn += 1
    assert found == messages
    assert upload.is_between_messages


def test_an_unfinished_message_is_noticed() -> None:
    """The end of the stream may come too early, within prefix or body."""
    upload = Upload(1000)
    for byte in prefixed(b"abc")[:-1]:
        assert list(upload.feed(memoryview(bytes((byte,))))) == []
        assert not upload.is_between_messages


def test_a_message_too_long_is_refused_by_its_prefix() -> None:
    """Its prefix is enough to refuse it, before any of its body has arrived."""
    with pytest.raises(ServingError) as caught:
        list(Upload(10).feed(memoryview(b"\0\0\0\0\x0b")))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_an_unknown_flag_is_refused() -> None:
    """Only 0 and 1 are defined."""
    with pytest.raises(ServingError) as caught:
        list(Upload(10).feed(memoryview(b"\x02\0\0\0\0")))
    assert caught.value.code is Code.INTERNAL


def test_large_messages_arrive_as_they_were_sent() -> None:
    """A large message arrives intact through every size that its pages take."""
    body = bytes(range(251)) * 20_000
    data = memoryview(prefixed(body))
    upload = Upload(1 << 23)
    assert list(upload.feed(data[:10_007])) == []
    upload.give_memory()
    found = [
        bytes(message)
        for start in range(10_007, len(data), 10_007)
        for _, message in upload.feed(data[start : start + 10_007])
    ]
    assert found == [body]


def test_a_claim_takes_no_memory_of_its_own() -> None:
    """An announced length takes no memory before a byte of the message has come."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        uploads = [Upload(1 << 30) for _ in range(1000)]
        for upload in uploads:
            assert list(upload.feed(memoryview(b"\0\0\x10\0\0"))) == []
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000
