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
_CODE_OF = {theirs: DTYPE_CODES[ours] for theirs, ours in DTYPE_OF.items()}
_memmove = ctypes.memmove
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
        words: list[int] = []
        offset = slot.output_offset
        end = offset + slot.area_bytes
        address = self._address
        for output in outputs.values():
            size_bytes, code, source = _source(output)
            if offset + size_bytes > end:
                return self._spill(outputs)
            shape = output.shape
            words += (code, offset, size_bytes, len(shape), *shape)
            _copy(address + offset, source, size_bytes)
            offset = aligned(offset + size_bytes)
        _check_length(words)
        return words, None

    def _spill(self, outputs: Mapping[str, Output]) -> tuple[list[int], int]:
        """Writes the tensors into a memfd, whose start their offsets count from."""
        sources = [_source(output) for output in outputs.values()]
        words: list[int] = []
        total_bytes = 0
        for output, (size_bytes, code, _) in zip(
            outputs.values(), sources, strict=True
        ):
            shape = output.shape
            words += (code, total_bytes, size_bytes, len(shape), *shape)
            total_bytes = aligned(total_bytes + size_bytes)
        _check_length(words)
        fd = os.memfd_create("tfs:outputs", os.MFD_CLOEXEC)
        os.ftruncate(fd, total_bytes)
        with mmap.mmap(fd, total_bytes) as memory:
            anchor = (ctypes.c_char * 1).from_buffer(memory)
            address = ctypes.addressof(anchor)
            for size_bytes, _, source in sources:
                _copy(address, source, size_bytes)
                address = aligned(address + size_bytes)
            del anchor
        return words, fd


def _source(output: Output) -> tuple[int, int, torch.Tensor | bytes]:
    """Returns an output's size, the code of its dtype, and its bytes, dense."""
    if isinstance(output, torch.Tensor):
        dense = plain(output)
        return dense.nbytes, _CODE_OF[output.dtype], dense
    packed = pack_strings(output.data)  # type: ignore[arg-type]
    return len(packed), DTYPE_CODES[output.dtype], packed


def _copy(address: int, source: torch.Tensor | bytes, size_bytes: int) -> None:
    begin = source if isinstance(source, bytes) else source.data_ptr()
    _memmove(address, begin, size_bytes)


def _check_length(words: Sequence[int]) -> None:
    if len(words) + REPLY_WORDS > MAX_WORDS:
        raise ValueError("too many outputs, or of too many dimensions")
