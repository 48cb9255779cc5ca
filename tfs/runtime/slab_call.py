"""The host's side of a slab: tasks become descriptors, replies become outcomes.

Knows no torch. Replies come from a process that runs somebody's model, so every number
in them is checked before it is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Final

from tfs.core.dtype import STRING
from tfs.core.errors import BY_CODE, Code, InvalidArgument, InvalidItems, ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.sealed_file import new_memfd
from tfs.runtime.guest.slab import (
    DTYPE_CODES,
    DTYPE_OF_CODE,
    MAX_WORDS,
    REPLY_WORDS,
    REQUEST_WORDS,
    Slab,
    Slot,
    aligned,
    pack_strings,
    unpack_strings,
)

_MAX_RANK: Final = 64
_MAX_TEXT_BYTES: Final = 4096
_WRITE_BYTES: Final = 1 << 30


class CorruptReply(Exception):
    """A reply makes no sense: the worker's memory is not what it should be."""


def write_request(
    slab: Slab, slot: Slot, model_id: int, signature_index: int, task: InferenceTask
) -> int | None:
    """Writes a task into a slot, copying each tensor once.

    Returns:
        None, or a memfd with the tensors where the slot is too small for them; the
        caller sends it and closes it.

    Raises:
        InvalidArgument: More tensors than a descriptor holds; nothing was sent.
        OSError: No memory for the memfd.

    """
    words: list[int] = []
    payloads: list[tuple[int, bytes | bytearray | memoryview]] = []
    offset = slot.input_offset
    inputs = task.inputs
    for index, name in enumerate(task.signature.inputs):
        view = inputs.get(name)
        if view is None:
            continue
        data = view.data
        if isinstance(data, tuple):
            data = pack_strings(data)
        size_bytes = len(data)
        shape = view.shape
        words += (
            index,
            DTYPE_CODES[view.dtype],
            offset,
            size_bytes,
            len(shape),
            *shape,
        )
        payloads.append((offset, data))
        offset = aligned(offset + size_bytes)
    if len(words) + REQUEST_WORDS > MAX_WORDS:
        raise InvalidArgument("too many inputs, or of too many dimensions")
    total_bytes = offset - slot.input_offset
    overflow_fd: int | None = None
    if total_bytes <= slot.area_bytes:
        memory = slab.map
        for offset, data in payloads:
            memory[offset : offset + len(data)] = data
        total_bytes = 0
    else:
        overflow_fd = _spill(payloads, slot.input_offset, total_bytes)
        _shift_inputs(words, -slot.input_offset)
    slab.write_words(
        slot.request_word,
        (model_id, signature_index, task.num_rows, total_bytes, len(words), *words),
    )
    return overflow_fd


def read_reply(
    slab: Slab, slot: Slot, who: str, signature: Signature, overflow_fd: int | None
) -> tuple[Outcome, float]:
    """Reads a slot's reply; returns the outcome, its tensors copied, and the seconds.

    Raises:
        CorruptReply: The worker wrote nonsense; it must not be used any more.

    """
    status, call_ns, overflow_bytes, num = slab.read_words(slot.reply_word, REPLY_WORDS)
    call_s = max(call_ns, 0) / 1e9
    start = slot.reply_word + REPLY_WORDS
    if status:
        return _error(status, slab.read_text(start, _bounded(num)), who), call_s
    if not 0 <= num <= MAX_WORDS - REPLY_WORDS:
        raise CorruptReply("descriptor length")
    words = slab.read_words(start, num)
    if not overflow_bytes:
        return _outputs(words, signature, _SlabMemory(slab, slot)), call_s
    if overflow_fd is None:
        raise CorruptReply("no memfd for its outputs")
    return _outputs(words, signature, _FileMemory(overflow_fd)), call_s


class _SlabMemory:
    """The output area of a slot."""

    def __init__(self, slab: Slab, slot: Slot) -> None:
        self._map = slab.map
        self._first = slot.output_offset
        self._stop = slot.output_offset + slot.area_bytes

    def read(self, offset: int, size_bytes: int) -> bytes:
        if offset < self._first or offset + size_bytes > self._stop:
            raise CorruptReply("a tensor outside its area")
        return self._map[offset : offset + size_bytes]


class _FileMemory:
    """A memfd; read, not mapped: its owner could truncate it under a mapping."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size_bytes = os.fstat(fd).st_size

    def read(self, offset: int, size_bytes: int) -> bytes:
        if offset < 0 or offset + size_bytes > self._size_bytes:
            raise CorruptReply("a tensor outside its memfd")
        parts = []
        while size_bytes:
            part = os.pread(self._fd, size_bytes, offset)
            if not part:
                raise CorruptReply("a tensor cut short")
            parts.append(part)
            offset += len(part)
            size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _outputs(
    words: Sequence[int], signature: Signature, memory: _SlabMemory | _FileMemory
) -> dict[str, TensorView]:
    outputs: dict[str, TensorView] = {}
    position = 0
    num_words = len(words)
    for name in signature.outputs:
        if position + 4 > num_words:
            raise CorruptReply("outputs are missing")
        code, offset, size_bytes, rank = words[position : position + 4]
        position += 4
        if not (
            0 <= code < len(DTYPE_OF_CODE)
            and 0 <= rank <= _MAX_RANK
            and position + rank <= num_words
            and size_bytes >= 0
        ):
            raise CorruptReply("a tensor's description")
        shape = tuple(words[position : position + rank])
        position += rank
        if shape and min(shape) < 0:
            raise CorruptReply("a negative size")
        dtype = DTYPE_OF_CODE[code]
        data = memory.read(offset, size_bytes)
        if dtype is STRING:
            try:
                strings = unpack_strings(data, math.prod(shape))
            except ValueError as error:
                raise CorruptReply(str(error)) from error
            outputs[name] = TensorView(STRING, shape, strings)
        elif size_bytes != math.prod(shape) * dtype.item_bytes:
            raise CorruptReply("a tensor's size")
        else:
            outputs[name] = TensorView(dtype, shape, data)
    return outputs


def _error(status: int, text: bytes, who: str) -> ServingError:
    try:
        kind = BY_CODE[Code(status)]
    except (KeyError, ValueError) as error:
        raise CorruptReply("status") from error
    items = InvalidItems.from_bytes(text)
    if items is not None:
        return items
    return kind(text.decode(errors="replace") or f"{who} failed")


def _bounded(size_bytes: int) -> int:
    if not 0 <= size_bytes <= _MAX_TEXT_BYTES:
        raise CorruptReply("text length")
    return size_bytes


def _spill(
    payloads: Sequence[tuple[int, bytes | bytearray | memoryview]],
    start: int,
    total_bytes: int,
) -> int:
    """Returns a memfd with the payloads at their offsets from ``start``."""
    fd = new_memfd("inputs")
    try:
        os.ftruncate(fd, total_bytes)
        for offset, data in payloads:
            rest = memoryview(data)
            position = offset - start
            while rest:
                written = os.pwrite(fd, rest[:_WRITE_BYTES], position)
                position += written
                rest = rest[written:]
    except BaseException:
        os.close(fd)
        raise
    return fd


def _shift_inputs(words: list[int], by: int) -> None:
    """Adds ``by`` to every offset."""
    position = 0
    while position < len(words):
        words[position + 2] += by
        position += 5 + words[position + 4]
