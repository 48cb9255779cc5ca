"""tfs.core.loop.thread_times: computing is told from standing in line and from sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tfs.core.loop.thread_times import ThreadTimes, ThreadTimesReader


@pytest.fixture
def reader() -> Iterator[ThreadTimesReader]:
    reader = ThreadTimesReader()
    yield reader
    reader.close()


def test_the_kernel_counts_what_a_thread_computes(reader: ThreadTimesReader) -> None:
    """A thread's times can be read by its number, from any other thread."""
    ident = threading.get_native_id()
    before = reader.read(ident)
    assert before is not None
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < 0.02:
        pass
    found: list[ThreadTimes | None] = []
    other = threading.Thread(target=lambda: found.append(reader.read(ident)))
    other.start()
    other.join()
    assert found[0] is not None
    assert found[0].since(before).ran_s > 0.01
    assert found[0].since(before).queued_s >= 0.0


def test_of_what_is_no_thread_of_this_process_nothing_is_known(
    reader: ThreadTimesReader,
) -> None:
    """As where the kernel counts nothing; another thread can be asked for afterwards."""
    for _ in range(2):
        assert reader.read(1 << 30) is None
    assert reader.read(threading.get_native_id()) is not None
    reader.close()
    reader.close()
    assert reader.read(threading.get_native_id()) is not None
