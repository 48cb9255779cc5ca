"""A worker's side of the slab: makes tensors of inputs in place, and writes outputs.

The memory of a tensor over an input area belongs to the call until the reply is
written, so a model may write to it. A model that wants to keep an input for longer has
to copy it, as with any buffer that is reused.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch

from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.slab import (
    ALIGNMENT,
    DTYPE_CODES,
    DTYPE_OF_CODE,
    MAX_WORDS,
    REPLY_WORDS,
    Plans,
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

_PlannedInput: TypeAlias = (
    "tuple[str, torch.dtype | None, int, int, tuple[int, ...], tuple[int, ...], int]"
)
"""Name, dtype (None: strings), elements, offset, shape, strides, bytes."""

_CODE_OF = {theirs: DTYPE_CODES[ours] for theirs, ours in DTYPE_OF.items()}
_memmove = ctypes.memmove
_STRIDED = torch.strided
_MOST_WORDS = MAX_WORDS - REPLY_WORDS
_TOO_MANY = "too many outputs, or of too many dimensions"


class InputReader:
    """Makes a call's inputs from its descriptor. Confined to the worker's thread.

    Args:
        memory: The slab, which contains the inputs unless a call brings its own memory.

    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._plans = Plans(_plan)
        # What lies at a place of the slab: making it costs more than a view of it.
        self._flat = Plans(self._place)

    def read(
        self, names: tuple[str, ...], descriptor: bytes, overflow: mmap.mmap | None
    ) -> dict[str, Value]:
        """Returns inputs by name, each a new tensor over the memory.

        Args:
            names: Input names in the signature's order.
            descriptor: The words of the request that describe the inputs.
            overflow: The memfd with inputs that the slab cannot hold; None for the
                slab.

        """
        plan = self._plans[names, descriptor]
        inputs: dict[str, Value] = {}
        for name, dtype, num_elements, offset, shape, strides, size_bytes in plan:
            if dtype is None:
                memory = overflow or self._memory
                packed = memory[offset : offset + size_bytes]
                inputs[name] = nest(unpack_strings(packed, num_elements), shape)
            elif not num_elements:
                inputs[name] = torch.empty(shape, dtype=dtype)
            elif overflow is not None:
                flat = torch.frombuffer(
                    overflow, dtype=dtype, count=num_elements, offset=offset
                )
                inputs[name] = flat.as_strided(shape, strides)
            else:
                flat = self._flat[dtype, num_elements, offset]
                inputs[name] = flat.as_strided(shape, strides)
        return inputs

    def _place(self, place: tuple[torch.dtype, int, int]) -> torch.Tensor:
        dtype, num_elements, offset = place
        return torch.frombuffer(
            self._memory, dtype=dtype, count=num_elements, offset=offset
        )


def _plan(key: tuple[tuple[str, ...], bytes]) -> list[_PlannedInput]:
    names, descriptor = key
    words = memoryview(descriptor).cast("q").tolist()
    plan: list[_PlannedInput] = []
    position = 0
    while position < len(words):
        index, code, offset, size_bytes, rank = words[position : position + 5]
        position += 5
        shape = tuple(words[position : position + rank])
        position += rank
        dtype = TORCH_DTYPES.get(DTYPE_OF_CODE[code])
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(rank))
        plan.append(
            (names[index], dtype, math.prod(shape), offset, shape, strides, size_bytes)
        )
    return plan


class _Place(NamedTuple):
    """Where an output of one dtype and shape goes: the slab there, and its words."""

    tensor: torch.Tensor | None  # None if it has no bytes, or more than there are
    words: tuple[int, ...]
    stop: int


class OutputWriter:
    """Writes a worker's outputs where its host reads them. Confined to its thread."""

    def __init__(self, slab: Slab) -> None:
        self._map = slab.map
        self._places = Plans(self._place)

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
        places = self._places
        for output in outputs.values():
            if isinstance(output, torch.Tensor):
                place = places[offset, output.dtype, output.shape]
                stop = place.stop
                if stop > end:
                    return self._spill(outputs)
                words += place.words
                if place.tensor is not None:
                    # One copy, whatever its strides, device and pending negation are.
                    place.tensor.copy_(
                        output if output.layout is _STRIDED else output.to_dense()
                    )
            else:
                packed = pack_strings(output.strings)
                stop = offset + len(packed)
                if stop > end:
                    return self._spill(outputs)
                shape = output.shape
                code = DTYPE_CODES[output.dtype]
                words += (code, offset, len(packed), len(shape), *shape)
                self._map[offset:stop] = packed
            offset = (stop + ALIGNMENT - 1) & -ALIGNMENT
        if len(words) > _MOST_WORDS:
            raise ValueError(_TOO_MANY)
        return words, None

    def _place(self, key: tuple[int, torch.dtype, torch.Size]) -> _Place:
        offset, dtype, shape = key
        size_bytes = shape.numel() * dtype.itemsize
        tensor: torch.Tensor | None = None
        if 0 < size_bytes <= len(self._map) - offset:
            tensor = torch.frombuffer(
                self._map, dtype=dtype, count=shape.numel(), offset=offset
            ).view(shape)
        words = (_CODE_OF[dtype], offset, size_bytes, len(shape), *shape)
        return _Place(tensor, words, offset + size_bytes)

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
        if len(words) > _MOST_WORDS:
            raise ValueError(_TOO_MANY)
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
    packed = pack_strings(output.strings)
    return len(packed), DTYPE_CODES[output.dtype], packed


def _copy(address: int, source: torch.Tensor | bytes, size_bytes: int) -> None:
    begin = source if isinstance(source, bytes) else source.data_ptr()
    _memmove(address, begin, size_bytes)
