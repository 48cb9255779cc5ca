"""Weights that lie in memory once for every interpreter, and how torch gets to them.

Archives of torch.package and torch.export are read by :class:`MappedReader`, whose tensors
are views of shared memory. TorchScript's loader reads tensors into memory of its own. The
same bytes are in the version's sealed file, which every interpreter maps. If a tensor's
elements are found there, the tensor is made to use the mapping, and its copy is freed.
A ``python`` version has a file of weights beside its code.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import torch

from tfs.core.errors import DataLoss
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.version.version_layout import CHECKPOINT, SAFETENSORS
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.memory_files import SealedFile, VersionFiles
from tfs.runtime.guest.model_source import ModelSource

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


_MAX_NAMES: Final = 20  # of weights, in a message

SAFETENSORS_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class NoSuchWeight(KeyError):
    """A name that the version's weights do not have; says which they have."""

    def __str__(self) -> str:
        return str(self.args[0])


class Weights(dict[str, Any]):
    """Weights by name, which tell who asks for another name what there is.

    Args:
        weights: The weights.
        where: What they come from, with a verb, for the message.

    """

    def __init__(self, weights: Mapping[str, Any], where: str = "it holds") -> None:
        super().__init__(weights)
        self._where = where

    def __missing__(self, name: object) -> object:
        names = [str(each) for each in self]
        told = ", ".join(sorted(names)[:_MAX_NAMES]) or "nothing"
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        raise NoSuchWeight(f"no weight {name!r}: {self._where} {told}{more}")


def weights_of(source: ModelSource, files: VersionFiles) -> Mapping[str, torch.Tensor]:
    """Returns the weights of a ``python`` version by name, on its device.

    Raises:
        DataLoss: They are damaged, or more than weights.

    """
    who = source.id.slashed
    try:
        if SAFETENSORS in files.files:
            weights = read_safetensors(files[SAFETENSORS].map())
            if source.device != "cpu":
                weights = {k: each.to(source.device) for k, each in weights.items()}
            return Weights(weights, f"{SAFETENSORS} holds")
        if CHECKPOINT in files.files:
            path = files[CHECKPOINT].path
            # Mapped privately; what torch wrote before 1.6 cannot be.
            is_mapped = source.device == "cpu" and zipfile.is_zipfile(path)
            loaded = torch.load(
                path, map_location=source.device, weights_only=True, mmap=is_mapped
            )
            if type(loaded) is dict:
                return Weights(loaded, f"{CHECKPOINT} holds")
            return cast("Mapping[str, torch.Tensor]", loaded)
    except pickle.UnpicklingError as error:
        raise DataLoss(f"{who}: {CHECKPOINT} {_not_only_weights(error)}") from error
    except Exception as error:
        raise DataLoss(
            f"{who}: its weights cannot be read: {one_line(error)}"
        ) from error
    none = f"without {SAFETENSORS} or {CHECKPOINT} it has"
    return Weights({}, none)


def _not_only_weights(error: pickle.UnpicklingError) -> str:
    """Returns what is wrong with a checkpoint, without torch's advice to trust it."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    if found is None:
        return "is no checkpoint of torch.save that weights_only=True reads"
    return (
        f"holds a {found[1]}, and only tensors, numbers, strings and containers of them "
        "are read from it (weights_only): save what it computes with as tensors, or put "
        "its file into assets/ and read it in load()"
    )


def read_safetensors(buffer: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file as views of a writable buffer.

    Raises:
        ValueError: It is not such a file, or damaged.

    """
    header_bytes = int.from_bytes(buffer[:8], "little")
    start = 8 + header_bytes
    if len(buffer) < 8 or start > len(buffer):
        raise ValueError("the header is cut short")
    header = json.loads(bytes(buffer[8:start]))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = SAFETENSORS_DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"tensor {name!r} is of unknown type {entry['dtype']!r}")
        shape = tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
        num = math.prod(shape)
        if not 0 <= begin <= end <= len(buffer) - start or end - begin != (
            num * dtype.itemsize
        ):
            raise ValueError(f"tensor {name!r} lies outside the file")
        if not num:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        if (start + begin) % dtype.itemsize:  # torch reads what it takes to be aligned
            piece = bytearray(buffer[start + begin : start + end])
            flat = torch.frombuffer(piece, dtype=dtype)
        else:
            flat = torch.frombuffer(
                buffer, dtype=dtype, count=num, offset=start + begin
            )
        tensors[name] = flat.view(shape)
    return tensors
