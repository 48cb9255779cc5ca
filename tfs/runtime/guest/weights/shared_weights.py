"""Frees the copies of weights that a loader made of an archive held in memory.

TorchScript's loader reads tensors into memory of its own. The same bytes are in the
version's sealed file, which every interpreter maps. If a tensor's elements are found
there, the tensor is made to use the mapping, and its copy is freed.

Archives of torch.package and torch.export do not need this: their readers can be given
views from the start (:mod:`tfs.runtime.guest.weights.mapped_reader`).
"""

from __future__ import annotations

import ctypes
import mmap
import zipfile
from collections.abc import Iterable

import torch

from tfs.runtime.guest.sealed_file import SealedFile

_MIN_BYTES = 64 << 10  # below, a comparison costs more than the page it frees
_ALIGNMENT = 16
_LOCAL_HEADER_BYTES = 30

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def share_weights(tensors: Iterable[torch.Tensor], file: SealedFile) -> None:
    """Points tensors at the archive's bytes where they are the same.

    This is for dense tensors on the CPU that own their whole storage, and for records
    that are not compressed. Blocks for one comparison of the weights.
    """
    records = _records_of(file, _MIN_BYTES)
    mapping = file.map()
    anchor = (ctypes.c_char * 1).from_buffer(mapping)
    address = ctypes.addressof(anchor)
    del anchor
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            continue  # only its parts have bytes
        size_bytes = tensor.nbytes
        if (
            size_bytes < _MIN_BYTES
            or tensor.device.type != "cpu"
            or not tensor.is_contiguous()
            or tensor.untyped_storage().nbytes() != size_bytes
        ):
            continue
        for offset in records.get(size_bytes, ()):
            if _compare(tensor.data_ptr(), address + offset, size_bytes) == 0:
                tensor.data = _view(mapping, offset, tensor)
                break


def _view(mapping: mmap.mmap, offset: int, like: torch.Tensor) -> torch.Tensor:
    flat = torch.frombuffer(
        mapping, dtype=like.dtype, count=like.numel(), offset=offset
    )
    return flat.view(like.shape)


def _records_of(file: SealedFile, min_bytes: int) -> dict[int, list[int]]:
    """Returns the offsets of an archive's plain, aligned records by their size."""
    found: dict[int, list[int]] = {}
    with open(file.path, "rb") as opened, zipfile.ZipFile(opened) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size < min_bytes:
                continue
            opened.seek(info.header_offset)
            header = opened.read(_LOCAL_HEADER_BYTES)
            name_bytes = int.from_bytes(header[26:28], "little")
            extra_bytes = int.from_bytes(header[28:30], "little")
            offset = info.header_offset + len(header) + name_bytes + extra_bytes
            if offset % _ALIGNMENT == 0:
                found.setdefault(info.file_size, []).append(offset)
    return found
