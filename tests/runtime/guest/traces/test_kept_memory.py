"""Whether a process holds more memory than it did."""

from __future__ import annotations

import mmap

import pytest

from tfs.runtime.guest.traces import kept_memory
from tfs.runtime.guest.traces.kept_memory import KeptMemory

MB = 1 << 20


def test_what_is_kept_is_told_and_what_was_given_back_is_not() -> None:
    """The excess is what is held at that time, whatever was touched meanwhile."""
    memory = KeptMemory(16 * MB)
    assert memory.excess_bytes() == 0
    with mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE) as block:
        # Page by page: what the allocator got for one long value it might keep.
        for index in range(0, len(block), mmap.PAGESIZE):
            block[index] = 1
        assert 56 * MB < memory.excess_bytes() < 160 * MB
    assert memory.excess_bytes() == 0


def test_nothing_is_counted_while_too_little_was_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counting takes the kernel milliseconds; what cannot have grown is not counted."""
    counted: list[int] = []

    def private_bytes(_pid: int) -> int:
        counted.append(1)
        return 0

    monkeypatch.setattr(kept_memory, "private_bytes", private_bytes)
    memory = KeptMemory(1 << 40)
    for _ in range(10):
        assert memory.excess_bytes() == 0
    assert len(counted) == 1


def test_where_the_system_does_not_say_nobody_guesses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown size is no size of 0."""
    monkeypatch.setattr(kept_memory, "private_bytes", lambda _pid: None)
    with pytest.raises(OSError, match="does not say"):
        KeptMemory(MB)
