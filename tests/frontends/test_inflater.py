"""Compressed requests of grpcio's clients are unpacked within bounds."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from tfs.core.errors import Code, ServingError
from tfs.core.executor import InlineExecutor
from tfs.frontends.rpc.grpcio.inflater import Inflater
from tfs.testing.held_executor import HeldExecutor

MB = 1 << 20
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


def inflate(message: bytes, max_bytes: int = 8 * MB) -> bytes | memoryview:
    inflater = Inflater(max_bytes, 4 * MB, InlineExecutor())
    return asyncio.run(inflater.inflate(message))


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
@pytest.mark.parametrize("size", [0, 100, 65_536, 65_537, 3 * MB])
def test_what_was_compressed_comes_back(
    compress: Callable[[bytes], bytes], size: int
) -> None:
    """Small messages are unpacked at once, large ones by the executor."""
    for message in (bytes(size), random.Random(size).randbytes(size)):
        assert inflate(compress(message)) == message


@pytest.mark.parametrize(
    "message", [b"", b"\x0a\x02ab", b"x", b"\x78\x01", zlib.compress(b"x")[:5]]
)
def test_what_was_not_compressed_stays_as_it_is(message: bytes) -> None:
    """A message is left alone even if it begins like a zlib stream but is none."""
    assert inflate(message) is message


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
@pytest.mark.parametrize(("size", "bound"), [(1001, 1000), (5 * MB, 8 * MB)])
def test_a_bomb_stops_at_the_bound(
    compress: Callable[[bytes], bytes], size: int, bound: int
) -> None:
    """The bound is lower for messages that shrank further than data does."""
    with pytest.raises(ServingError) as caught:
        inflate(compress(bytes(size)), bound)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_damaged_gzip_is_internal() -> None:
    """Damaged gzip is INTERNAL, because no protobuf message begins like gzip."""
    with pytest.raises(ServingError) as caught:
        inflate(gzip.compress(b"x" * 100)[:-4])
    assert caught.value.code is Code.INTERNAL


def test_a_message_that_is_ready_after_the_end_is_dropped() -> None:
    """A thread that still decompresses when the server ends finds nobody to tell."""
    executor = HeldExecutor()
    inflater = Inflater(8 * MB, 4 * MB, executor)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task ends with its loop
    message = gzip.compress(random.Random(1).randbytes(MB))
    task = loop.create_task(inflater.inflate(message))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    (decompress,) = executor.held
    decompress()
    assert not task.done()
