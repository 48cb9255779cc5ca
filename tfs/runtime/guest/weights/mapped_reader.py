"""Reads torch's archives from shared memory: their tensors are views, not copies."""

from __future__ import annotations

import mmap
import zipfile
from collections.abc import Callable

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
