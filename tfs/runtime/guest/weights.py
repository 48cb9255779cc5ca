"""Weights that lie in memory once for every interpreter, and how torch gets to them.

Archives of torch.package and torch.export are read by :class:`MappedReader`, whose tensors
are views of shared memory. TorchScript's loader reads tensors into memory of its own. The
same bytes are in the version's sealed file, which every interpreter maps. If a tensor's
elements are found there, the tensor is made to use the mapping, and its copy is freed.
"""

from __future__ import annotations

import ctypes
import mmap
import zipfile
from collections.abc import Callable, Iterable

import torch

from tfs.core.errors import DataLoss
from tfs.core.loop.pacing import yield_to_requests
from tfs.runtime.guest.sealed_file import SealedFile

_ALIGNMENT = 16  # torch writes records at multiples of 64; any element type needs 16


class MappedReader(torch._C.PyTorchFileReader):
    """Reads an archive in memory; tensors are views of a private mapping of it.

    Records that were compressed or moved off their alignment by another zip program
    are read into memory of their own instead.

    Args:
        file: The archive.
        on_map: Told of what is mapped; see :meth:`SealedFile.map`.

    """

    def __init__(
        self, file: SealedFile, on_map: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(file.path)
        self._on_map = on_map
        self._file = file.duplicate()
        self._mapping: mmap.mmap | None = None
        with zipfile.ZipFile(file.path) as archive:
            self._stored = {
                info.filename.partition("/")[2]
                for info in archive.infolist()
                if info.compress_type == zipfile.ZIP_STORED
            }

    def get_storage_from_record(
        self, name: str, numel: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Returns a flat tensor over the record, without copying if that is possible."""
        yield_to_requests()
        size_bytes = self.get_record_size(name)
        if numel * dtype.itemsize > size_bytes:
            raise DataLoss(f"tensor {name} is cut short; write the version again")
        offset = self.get_record_offset(name)  # type: ignore[attr-defined]
        if (
            not numel
            or name not in self._stored
            or offset % _ALIGNMENT
            or self._mapping is None
        ):
            copied: torch.Tensor = super().get_storage_from_record(name, numel, dtype)
            return copied
        return torch.frombuffer(self._mapping, dtype=dtype, count=numel, offset=offset)

    def zip_file(self) -> zipfile.ZipFile:
        """Opens the archive to read its files one by one, until it is garbage."""
        return zipfile.ZipFile(self._file.path)

    def remap(self) -> None:
        """Maps the archive anew; tensors are made over this mapping from now on."""
        self._mapping = self._file.map(self._on_map)

    def release(self) -> None:
        """Releases the archive; each mapping ends with the last tensor over it."""
        self._mapping = None
        self._file.close()


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
