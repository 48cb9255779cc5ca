"""The memory of calls, where their tensors do not matter."""

from __future__ import annotations

import os

from tfs.runtime.guest.slab import REQUESTS, Slab


def test_memory_of_past_calls_is_given_back_and_counters_stay() -> None:
    """What large tensors took is free; whoever counts calls counts on."""
    slab = Slab.create(16 << 20)
    slab.words[REQUESTS] = 5
    area = slab.slots[0].input_offset
    slab.map[area : area + (4 << 20)] = b"x" * (4 << 20)
    slab.forget()
    assert os.fstat(slab.fd).st_blocks * 512 < 1 << 20
    assert slab.words[REQUESTS] == 5
    assert slab.map[area : area + 8] == bytes(8)
    slab.close()


def test_little_memory_is_kept() -> None:
    """The next call needs no new pages."""
    slab = Slab.create(16 << 20)
    area = slab.slots[0].input_offset
    slab.map[area : area + 8] = b"12345678"
    slab.forget()
    assert slab.map[area : area + 8] == b"12345678"
    slab.close()
