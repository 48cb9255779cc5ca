"""tfs.core.process_memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import pytest

from tfs.core.process_memory import (
    anonymous_bytes,
    data_bytes,
    peak_bytes,
    private_bytes,
    proportional_bytes,
    resident_bytes,
)

NOBODY = (1 << 31) - 1  # beyond the largest number that Linux gives a process
SIZE_BYTES = 32 << 20
MEASURES = [
    anonymous_bytes,
    data_bytes,
    peak_bytes,
    private_bytes,
    proportional_bytes,
    resident_bytes,
]


@pytest.mark.parametrize("measure", MEASURES)
def test_nothing_is_told_of_a_process_that_is_gone(
    measure: Callable[[int], int | None],
) -> None:
    """It may end while it is looked at, and that is no error."""
    assert measure(NOBODY) is None


@pytest.mark.parametrize(
    "measure", [anonymous_bytes, private_bytes, proportional_bytes, resident_bytes]
)
def test_memory_that_a_process_writes_to_is_its_own(
    measure: Callable[[int], int | None],
) -> None:
    """It counts once it is touched, and no more when it is given back."""
    pid = os.getpid()
    with mmap.mmap(-1, SIZE_BYTES, flags=mmap.MAP_PRIVATE) as pages:
        before = measure(pid) or 0
        pages.write(b"x" * SIZE_BYTES)
        held = measure(pid) or 0
    after = measure(pid) or 0
    assert held - before > SIZE_BYTES * 3 // 4
    assert held - after > SIZE_BYTES * 3 // 4


def test_memory_that_is_shared_is_divided() -> None:
    """A process is charged no more than all that it holds, and all that is its own."""
    pid = os.getpid()
    private, proportional = private_bytes(pid), proportional_bytes(pid)
    assert private is not None
    assert proportional is not None
    slack_bytes = 4 << 20  # the three are read one after the other
    assert private - slack_bytes <= proportional
    assert proportional <= (resident_bytes(pid) or 0) + slack_bytes
