"""Memory is lent again only when nobody can see it, and never kept without bound."""

from __future__ import annotations

import mmap

from tests.frontends.express.wire import prefixed
from tfs.frontends.http2.messages import MessageAssembler
from tfs.frontends.http2.receive_buffers import ReceiveBuffers

SIZE = 100_000


def feed(assembler: MessageAssembler, body: bytes) -> memoryview:
    """Returns the message, having fed it in pieces."""
    data = memoryview(prefixed(body))
    assert list(assembler.feed(data[:16_384])) == []
    assembler.give_memory()
    found = [
        message
        for start in range(16_384, len(data), 16_384)
        for _, message in assembler.feed(data[start : start + 16_384])
    ]
    (message,) = found
    return message


def test_a_message_that_somebody_holds_is_not_overwritten() -> None:
    """A buffer is not lent again while anything refers to any part of it."""
    buffers = ReceiveBuffers()
    first = feed(MessageAssembler(1 << 20, buffers), b"a" * SIZE)
    part = first[5:10]
    del first
    second = feed(MessageAssembler(1 << 20, buffers), b"b" * SIZE)
    assert bytes(part) == b"aaaaa"
    assert bytes(second) == b"b" * SIZE


def test_what_a_sweep_sees_is_told() -> None:
    """Whoever returns free memory must know that there is some, and when it is used."""
    buffers = ReceiveBuffers()
    assert not buffers.sweep()
    feed(MessageAssembler(1 << 20, buffers), b"a" * SIZE)
    assert buffers.sweep()  # it was used since
    assert buffers.kept_bytes
    assert buffers.sweep()
    assert not buffers.kept_bytes
    assert not buffers.sweep()
    feed(MessageAssembler(1 << 20, buffers), b"a" * SIZE)
    assert buffers.clear()
    assert not buffers.clear()


def test_memory_nobody_points_into_is_used_again() -> None:
    """The next message of about that size lies where the one before did."""
    buffers = ReceiveBuffers()
    first = feed(MessageAssembler(1 << 20, buffers), b"a" * SIZE)
    memory = first.obj
    del first
    second = feed(MessageAssembler(1 << 20, buffers), b"b" * (SIZE - 1000))
    assert second.obj is memory
    assert bytes(second) == b"b" * (SIZE - 1000)


def test_an_abandoned_message_leaves_its_memory() -> None:
    """A message cut off in the middle gives back what it was lent."""
    buffers = ReceiveBuffers()
    memory = feed(MessageAssembler(1 << 20, buffers), b"a" * SIZE).obj
    assembler = MessageAssembler(1 << 20, buffers)
    list(assembler.feed(memoryview(prefixed(b"b" * SIZE))[:1000]))
    assembler.give_memory()
    assert feed(MessageAssembler(1 << 20, buffers), b"c" * SIZE).obj is not memory
    del assembler
    found = [feed(MessageAssembler(1 << 20, buffers), b"d" * SIZE) for _ in range(2)]
    assert memory in [message.obj for message in found]


def test_small_messages_and_much_smaller_ones_get_none() -> None:
    """A buffer is worth looking for from 64 KB on, and not to waste most of it."""
    buffers = ReceiveBuffers()
    buffers.keep(bytearray(1 << 20))
    assert buffers.take(1000) is None
    assert buffers.take((1 << 19) - 1) is None
    assert buffers.take((1 << 20) + 1) is None
    assert buffers.take(1 << 19) is not None


def test_what_is_kept_is_bounded() -> None:
    """Bytes and number of kept buffers are bounded; the longest kept goes first."""
    buffers = ReceiveBuffers(max_bytes=1 << 20)
    for _ in range(20):
        buffers.keep(bytearray(400_000))
    buffers.keep(bytearray(2 << 20))
    assert buffers.kept_bytes == 800_000
    for _ in range(100):
        buffers.keep(bytearray(65_536))
    assert buffers.kept_bytes == 16 * 65_536


def test_memory_goes_back_when_no_large_messages_come() -> None:
    """A sweep without any use since the one before forgets all."""
    buffers = ReceiveBuffers()
    buffers.keep(bytearray(SIZE))
    buffers.sweep()
    assert buffers.take(SIZE) is not None
    buffers.sweep()
    buffers.sweep()
    assert buffers.take(SIZE) is None
    assert buffers.kept_bytes == 0


def test_pages_of_large_messages_are_lent_again() -> None:
    """Mapped pages are lent again, once nothing points into them."""
    buffers = ReceiveBuffers()
    first = feed(MessageAssembler(1 << 22, buffers), b"a" * (2 << 20))
    assert isinstance(first.obj, mmap.mmap)
    assert buffers.take(2 << 20) is None
    pages = first.obj
    del first
    second = feed(MessageAssembler(1 << 22, buffers), b"b" * (2 << 20))
    assert second.obj is pages
    assert bytes(second) == b"b" * (2 << 20)
