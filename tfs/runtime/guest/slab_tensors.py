"""A worker's side of the slab: inputs become tensors in place, outputs are written.

A tensor over an input area is the call's own memory until the reply is written, so
that a model may write to it. A model that keeps an input beyond its call has to copy
it, as it would with any reused buffer.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.slab import (
    DTYPE_CODES,
    DTYPE_OF_CODE,
    MAX_WORDS,
    REPLY_WORDS,
    Slab,
    Slot,
    aligned,
    pack_strings,
    unpack_strings,
)
from tfs.runtime.guest.torch_tensor import (
    DTYPE_OF,
    TORCH_DTYPES,
    nest,
    plain,
)

_Plan: TypeAlias = (
    "list[tuple[str, torch.dtype | None, int, int, tuple[int, ...], int]]"
)
_MAX_PLANS = 256  # descriptors remembered; requests of one shape have one


class InputReader:
    """Makes a call's inputs from its descriptor. Confined to the worker's thread."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, bytes], _Plan] = {}

    def read(
        self, names: Sequence[str], descriptor: bytes, memory: mmap.mmap
    ) -> dict[str, Value]:
        """Returns inputs by name, as views of ``memory``.

        Args:
            names: Input names in the signature's order; the same object for the
                same signature.
            descriptor: The request's words, those of the inputs only.
            memory: The slab, or the memfd that holds what it cannot.

        """
        key = (id(names), descriptor)
        plan = self._plans.get(key)
        if plan is None:
            plan = _plan(names, descriptor)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        inputs: dict[str, Value] = {}
        for name, dtype, num_elements, offset, shape, size_bytes in plan:
            if dtype is None:
                packed = memory[offset : offset + size_bytes]
                inputs[name] = nest(unpack_strings(packed, num_elements), shape)
            elif not num_elements:
                inputs[name] = torch.empty(shape, dtype=dtype)
            else:
                flat = torch.frombuffer(
                    memory, dtype=dtype, count=num_elements, offset=offset
                )
                inputs[name] = flat if len(shape) == 1 else flat.view(shape)
        return inputs

    def forget(self) -> None:
        """Drops what was remembered of signatures that are gone."""
        self._plans.clear()


def _plan(names: Sequence[str], descriptor: bytes) -> _Plan:
    words = memoryview(descriptor).cast("q").tolist()
    plan: _Plan = []
    position = 0
    while position < len(words):
        index, code, offset, size_bytes, rank = words[position : position + 5]
        position += 5
        shape = tuple(words[position : position + rank])
        position += rank
        dtype = TORCH_DTYPES.get(DTYPE_OF_CODE[code])
        plan.append((names[index], dtype, math.prod(shape), offset, shape, size_bytes))
    return plan


class OutputWriter:
    """Writes a worker's outputs where its host reads them. Confined to its thread."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        anchor = (ctypes.c_char * 1).from_buffer(slab.map)
        self._address = ctypes.addressof(anchor)
        self._anchor = anchor  # keeps the mapping where it is

    def write(
        self, slot: Slot, outputs: Mapping[str, Output]
    ) -> tuple[list[int], int | None]:
        """Writes the tensors; returns their words, and a memfd if they overflow.

        The caller writes the words and sends, then closes, the memfd.

        Raises:
            ValueError: There are more tensors than a descriptor holds.

        """
        parts: list[tuple[int, tuple[int, ...], torch.Tensor | bytes]] = []
        words: list[int] = []
        total_bytes = 0
        for output in outputs.values():
            if isinstance(output, torch.Tensor):
                dense = plain(output)
                code = DTYPE_CODES[DTYPE_OF[output.dtype]]
                part: torch.Tensor | bytes = dense
                size_bytes = dense.nbytes
            else:
                part = pack_strings(output.data)  # type: ignore[arg-type]
                code = DTYPE_CODES[output.dtype]
                size_bytes = len(part)
            shape = tuple(output.shape)
            parts.append((size_bytes, shape, part))
            words += (code, total_bytes, size_bytes, len(shape), *shape)
            total_bytes = aligned(total_bytes + size_bytes)
        if len(words) + REPLY_WORDS > MAX_WORDS:
            raise ValueError("too many outputs, or of too many dimensions")
        if total_bytes <= slot.area_bytes:
            self._place(parts, self._address + slot.output_offset)
            return _shifted(words, slot.output_offset), None
        fd = os.memfd_create("tfs:outputs", os.MFD_CLOEXEC)
        os.ftruncate(fd, total_bytes)
        with mmap.mmap(fd, total_bytes) as memory:
            anchor = (ctypes.c_char * 1).from_buffer(memory)
            self._place(parts, ctypes.addressof(anchor))
            del anchor
        return words, fd

    def _place(
        self,
        parts: list[tuple[int, tuple[int, ...], torch.Tensor | bytes]],
        address: int,
    ) -> None:
        for size_bytes, _, part in parts:
            source = part if isinstance(part, bytes) else part.data_ptr()
            ctypes.memmove(address, source, size_bytes)
            address = aligned(address + size_bytes)


def _shifted(words: list[int], by: int) -> list[int]:
    """Adds ``by`` to every offset."""
    position = 0
    while position < len(words):
        words[position + 1] += by
        position += 4 + words[position + 3]
    return words
