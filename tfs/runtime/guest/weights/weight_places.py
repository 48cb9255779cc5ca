"""Finds where in a version's file the bytes of a storage come from."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.weights.shared_weights import records_of

FindOffset: TypeAlias = "Callable[[torch.UntypedStorage], int | None]"
"""Takes a storage on the CPU; returns its offset in the file, or None if it is not there."""

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def by_address(mappings: Callable[[], Sequence[mmap.mmap]]) -> FindOffset:
    """Finds storages that are views of mappings of the file, whatever they contain now."""

    def find(storage: torch.UntypedStorage) -> int | None:
        for mapping in mappings():
            offset = storage.data_ptr() - _address(mapping)
            if 0 <= offset <= len(mapping) - storage.nbytes():
                return offset
        return None

    return find


def by_content(file: SealedFile, min_bytes: int) -> FindOffset:
    """Finds storages whose bytes equal those of a record of an archive.

    It is for loaders that do not say where a storage comes from, and costs one
    comparison of the weights.
    """
    records = records_of(file, min_bytes)
    mapping = file.map()

    def find(storage: torch.UntypedStorage) -> int | None:
        size_bytes, address = storage.nbytes(), _address(mapping)
        for offset in records.get(size_bytes, ()):
            if _compare(storage.data_ptr(), address + offset, size_bytes) == 0:
                return offset
        return None

    return find


def _address(mapping: mmap.mmap) -> int:
    anchor = (ctypes.c_char * 1).from_buffer(mapping)
    return ctypes.addressof(anchor)
