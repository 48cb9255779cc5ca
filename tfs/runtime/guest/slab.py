"""The memory a worker shares with its host: slots for calls, and their tensors.

    bytes 0..63      counters: requests (host), started (worker); then whether the host
                     has requests for any worker (host), and what a model in stages has
                     to say of them (worker)
    from byte 64 on  two rings of slots, and five words per slot
    slot 0, slot 1   request words | reply words | input area | output area

A call's descriptor is a row of 64-bit words. Nothing on the request path is pickled,
and the host can check everything that it reads: a worker runs somebody's model, and may
write anything.

    request  signature, num_rows, overflow_bytes, num_inputs,
             then per input: index, dtype, offset, size_bytes, rank, sizes...
    reply    status, call_ns, overflow_bytes, num_outputs or text bytes,
             then per output: dtype, offset, size_bytes, rank, sizes..., or the text

Offsets count from the slab's start, or from the start of a temporary memfd if
``overflow_bytes`` is not 0. A string tensor is its items' lengths as words, then the
items. A worker that runs one call at a time has two slots, so that it finds the next
call waiting; one that runs several has a slot for each. The doorbells, an eventfd for
calls and a pipe for answers, say how many there are; they also order the memory accesses
on every architecture.

Calls may end in any order, so both sides name the slots they mean in a ring. Each slot
has a word that says why nobody waits any more (a status code, 0 while somebody does),
and one for the deadline (monotonic nanoseconds, 0 for none); only calls that overlap
use these. Three more name the span of a call that is traced, with 0 for none.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tfs.core.dtype import DTYPES, DType
from tfs.core.servable import TraceContext
from tfs.runtime.guest.memory_files import ADD_SEALS, new_memfd

ALIGNMENT: Final = 64
WORD_BYTES: Final = 8

REQUESTS: Final = 0
STARTED: Final = 1
HOST_TRAFFIC: Final = 3
"""What a loading worker is told of the host's requests, a ``pacing.Traffic``."""

JOINED: Final = 4
RULE: Final = 5
"""How many calls joined a batch, and which rule let them (``AutoStatus.as_word``), of a
model in stages."""

REQUEST_WORDS: Final = 4
REPLY_WORDS: Final = 4

DTYPE_CODES: Final[dict[DType, int]] = {
    each: code for code, each in enumerate(DTYPES.values())
}
DTYPE_OF_CODE: Final[tuple[DType, ...]] = tuple(DTYPES.values())

_COUNTER_WORDS = 8
_SPAN = struct.Struct("=3Q")
_LOW = (1 << 64) - 1
_DESCRIPTOR_BYTES = 1 << 16
_LEAST_SLOT_BYTES = 1 << 19
_LEAST_SLOTS = 2
MAX_WORDS: Final = _DESCRIPTOR_BYTES // WORD_BYTES
_SEALS = 0x1 | 0x2 | 0x4  # SEAL, SHRINK, GROW: a truncated slab would kill the host

# By number of words, at most MAX_WORDS; whoever makes one twice makes the same.
_PACKINGS: Final[dict[int, struct.Struct]] = {}


MAX_PLANS: Final = 256
"""Calls of one shape share a plan; of more shapes than these nothing is kept."""

_Key = TypeVar("_Key")
_Plan = TypeVar("_Plan")


class Plans(dict[_Key, _Plan]):
    """Makes the plan that is asked for and not there; forgets all if there are too many.

    Args:
        make: Makes one by its key.

    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[_Key], _Plan]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: _Key) -> _Plan:
        plan = self._make(key)
        if len(self) >= MAX_PLANS:
            self.clear()
        self[key] = plan
        return plan


class Slot:
    """Where one slot's parts lie, in words and bytes from the slab's start."""

    __slots__ = (
        "area_bytes",
        "input_offset",
        "output_offset",
        "reply_byte",
        "reply_word",
        "request_byte",
        "request_word",
    )

    def __init__(self, header_bytes: int, index: int, area_bytes: int) -> None:
        start = header_bytes + index * (2 * _DESCRIPTOR_BYTES + 2 * area_bytes)
        self.request_byte = start
        self.request_word = start // WORD_BYTES
        self.reply_byte = start + _DESCRIPTOR_BYTES
        self.reply_word = self.reply_byte // WORD_BYTES
        self.input_offset = start + 2 * _DESCRIPTOR_BYTES
        self.output_offset = self.input_offset + area_bytes
        self.area_bytes = area_bytes


class Slab:
    """A mapped slab; one side's view of it. Confined to one thread per side.

    Args:
        fd: The memory.
        concurrency: How many calls the worker runs at once.

    If calls overlap, the worker's threads share a side. A slot belongs to one thread
    from when it takes the request until it gives the reply; rings and counters belong
    to the holder of the lock.

    """

    def __init__(self, fd: int, concurrency: int) -> None:
        self.fd = fd
        self.num_slots = num_slots = max(_LEAST_SLOTS, concurrency)
        self.map = mmap.mmap(fd, os.fstat(fd).st_size)
        self.words = memoryview(self.map).cast("q")
        self.request_ring, self.reply_ring, self.marks, self.deadlines, self.spans = (
            _COUNTER_WORDS + part * num_slots for part in range(5)
        )
        header_bytes = (_COUNTER_WORDS + 7 * num_slots) * WORD_BYTES
        header_bytes += -header_bytes % mmap.PAGESIZE
        overhead_bytes = header_bytes + num_slots * 2 * _DESCRIPTOR_BYTES
        area_bytes = (len(self.map) - overhead_bytes) // (2 * num_slots)
        area_bytes -= area_bytes % mmap.PAGESIZE
        self.slots = tuple(
            Slot(header_bytes, index, area_bytes) for index in range(num_slots)
        )

    @classmethod
    def create(cls, size_bytes: int, concurrency: int) -> Slab:
        """Makes a slab; it takes memory only as it is touched.

        It is larger than asked for if so many slots need more.

        Raises:
            OSError: There is no descriptor or address space left; nothing stays.

        """
        fd = new_memfd("slab")
        try:
            os.ftruncate(fd, max(size_bytes, concurrency * _LEAST_SLOT_BYTES))
            fcntl.fcntl(fd, ADD_SEALS, _SEALS)
            return cls(fd, concurrency)
        except BaseException:
            os.close(fd)
            raise

    def write_words(self, start: int, values: Sequence[int]) -> None:
        """Writes words from ``start`` on."""
        packing = _PACKINGS.get(len(values))
        if packing is None:
            packing = _PACKINGS[len(values)] = struct.Struct(f"={len(values)}q")
        packing.pack_into(self.map, start * WORD_BYTES, *values)

    def write_span(self, slot_index: int, context: TraceContext | None) -> None:
        """Writes the span of a slot's call; None if it is not traced."""
        trace_id, span_id = context or (0, 0)
        place = (self.spans + 3 * slot_index) * WORD_BYTES
        _SPAN.pack_into(self.map, place, span_id, trace_id >> 64, trace_id & _LOW)

    def read_span(self, slot_index: int) -> TraceContext | None:
        """Returns the span of a slot's call; None if it is not traced."""
        start = self.spans + 3 * slot_index
        if not self.words[start]:
            return None
        span_id, high, low = _SPAN.unpack_from(self.map, start * WORD_BYTES)
        return TraceContext(high << 64 | low, span_id)

    def write_text(self, start: int, text: bytes) -> None:
        """Writes bytes where words begin."""
        offset = start * WORD_BYTES
        self.map[offset : offset + len(text)] = text

    def close(self) -> None:
        """Unmaps and closes; idempotent. Nothing may view the slab any more."""
        if self.fd >= 0:
            self.words.release()
            self.map.close()
            os.close(self.fd)
            self.fd = -1


def aligned(offset: int) -> int:
    """Returns the next offset at which a tensor may begin."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT


def pack_strings(items: Sequence[bytes]) -> bytes:
    """Returns the items' lengths, then the items."""
    lengths = array.array("q", map(len, items))
    return lengths.tobytes() + b"".join(items)


def unpack_strings(packed: bytes, num_items: int) -> tuple[bytes, ...]:
    """Returns the items that ``pack_strings`` packed.

    Raises:
        ValueError: The lengths do not fill ``packed``.

    """
    start = num_items * WORD_BYTES
    if len(packed) < start:
        raise ValueError("strings are cut short")
    items = []
    for length in memoryview(packed)[:start].cast("q"):
        if length < 0:
            raise ValueError("a string of negative length")
        items.append(packed[start : start + length])
        start += length
    if start != len(packed):
        raise ValueError("strings do not fill their place")
    return tuple(items)
