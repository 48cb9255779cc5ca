"""Moves Python objects between interpreters without copying their tensors.

Source: "Using Python for Model Inference in Deep Learning", section 4.3. An object is
pickled once. The storages of its tensors stay out of the pickle: a storage that lies in
a package's archive is named by its place there, and the others are written once into a
memfd that every interpreter maps.
"""

from __future__ import annotations

import ctypes
import io
import logging
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch.package._package_pickler import PackagePickler
from torch.package._package_unpickler import PackageUnpickler
from torch.package.importer import OrderedImporter, sys_importer
from torch.package.package_importer import PackageImporter

from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd, num_written_pages

_ALIGNMENT: Final = 64
ARENA: Final = -1
"""As the number of a storage's place, this means the object's own memfd; other numbers
are those of packages."""


_StorageName: TypeAlias = "tuple[int, int, int, torch.dtype | None]"
"""Package or ARENA, offset, bytes, and the dtype of a typed storage."""


@dataclass(frozen=True, slots=True)
class OpenPackage:
    """A package an interpreter has opened. Immutable."""

    package_id: int
    importer: PackageImporter

    def mappings(self) -> list[mmap.mmap]:
        """Returns where its archive is mapped."""
        found: list[mmap.mmap] = self.importer.zip_reader.mappings()
        return found

    def new_mapping(self) -> mmap.mmap:
        """Maps its archive once more."""
        mapping: mmap.mmap = self.importer.zip_reader.remap()
        return mapping


@dataclass(frozen=True, slots=True)
class Pickled:
    """A pickled object; the receiver owns ``arena_fd``, which is sealed."""

    data: bytes
    arena_fd: int


def pickle_movable(obj: object, packages: Sequence[OpenPackage]) -> Pickled:
    """Pickles an object whose classes come from ``packages`` or are installed.

    Raises:
        InvalidArgument: Something in it cannot be pickled.

    """
    importer = _importer(packages)
    buffer = io.BytesIO()
    arena_fd = new_memfd("movable")
    storages = _StorageWriter(arena_fd, packages)
    pickler = PackagePickler(importer, buffer, protocol=4)
    pickler._persistent_id = storages.persistent_id
    log = logging.getLogger("torch.package.importer")
    level = log.level
    log.setLevel(logging.ERROR)  # it would warn of each importer that lacks a name
    try:
        pickler.dump(obj)
        SealedFile.seal(arena_fd)
    except Exception as error:
        os.close(arena_fd)
        why = str(error).partition(": Could not find obj")[0]
        raise InvalidArgument(
            f"this object cannot be moved: {why}. What moves is pickled: lambdas, "
            "classes and functions within functions, locks and open files are not"
        ) from error
    finally:
        log.setLevel(level)
    return Pickled(buffer.getvalue(), arena_fd)


def unpickle_movable(
    data: bytes,
    arena: SealedFile,
    packages: Mapping[int, OpenPackage],
    on_map: Callable[[int], None] | None = None,
) -> object:
    """Returns the object; its tensors are views of the arena and of the archives.

    Args:
        data: The object's pickle.
        arena: Contains the storages that are in no archive.
        packages: The packages with which it was pickled.
        on_map: Told how much of the arena is mapped; see :meth:`SealedFile.map`.

    """
    mappings = {each.package_id: each.new_mapping() for each in packages.values()}
    if arena.size_bytes:
        mappings[ARENA] = arena.map(on_map)

    def persistent_load(reference: _StorageName) -> object:
        package_id, offset, size_bytes, dtype = reference
        if not size_bytes:
            storage = torch.empty(0, dtype=torch.uint8).untyped_storage()
        else:
            storage = torch.frombuffer(
                mappings[package_id],
                dtype=torch.uint8,
                count=size_bytes,
                offset=offset,
            ).untyped_storage()
        # Untyped storages are wrapped too, as torch.load does it: the functions that
        # rebuild tensors of newer dtypes accept nothing else.
        return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
            wrap_storage=storage, dtype=dtype or torch.uint8, _internal=True
        )

    unpickler = _MovableUnpickler(
        _importer(list(packages.values())), io.BytesIO(data), persistent_load
    )
    found: object = unpickler.load()
    return found


class _MovableUnpickler(PackageUnpickler):
    """Finds classes in packages first, and storages where they were named."""

    def __init__(
        self,
        importer: OrderedImporter,
        file: io.BytesIO,
        find_storage: Callable[[_StorageName], object],
    ) -> None:
        super().__init__(importer, file)
        self._find_storage = find_storage

    def persistent_load(self, pid: _StorageName) -> object:
        return self._find_storage(pid)


def _importer(packages: Sequence[OpenPackage]) -> OrderedImporter:
    importers = [package.importer for package in packages]
    return OrderedImporter(*importers, sys_importer)  # type: ignore[no-untyped-call]


def _address(mapping: mmap.mmap) -> int:
    anchor = (ctypes.c_char * 1).from_buffer(mapping)
    return ctypes.addressof(anchor)


class _StorageWriter:
    """Names storages; writes those that lie in no archive."""

    def __init__(self, arena_fd: int, packages: Sequence[OpenPackage]) -> None:
        self._arena_fd = arena_fd
        self._size_bytes = 0
        self._places = [
            (package.package_id, _address(mapping), mapping)
            for package in packages
            for mapping in package.mappings()
        ]
        # By address. The storages are kept alive, so that no address is used again.
        self._written: dict[tuple[int, int], tuple[int, torch.UntypedStorage]] = {}

    def persistent_id(self, obj: object) -> object:
        """Returns the name of a storage; None for everything else."""
        if isinstance(obj, torch.storage.TypedStorage):
            package_id, offset = self._place(obj._untyped_storage)
            return package_id, offset, obj._untyped_storage.nbytes(), obj.dtype
        if isinstance(obj, torch.UntypedStorage):
            package_id, offset = self._place(obj)
            return package_id, offset, obj.nbytes(), None
        return None

    def _place(self, storage: torch.UntypedStorage) -> tuple[int, int]:
        if storage.device.type != "cpu":
            raise ValueError(
                f"a tensor on {storage.device} cannot be moved; use .cpu()"
            )
        address, size_bytes = storage.data_ptr(), storage.nbytes()
        for package_id, start, mapping in self._places:
            offset = address - start
            if offset >= 0 and offset + size_bytes <= len(mapping):
                # If this interpreter has written to it, the archive does not hold the
                # tensor's values any more.
                if num_written_pages(mapping, offset, size_bytes) == 0:
                    return package_id, offset
                break
        known = self._written.get((address, size_bytes))
        if known is not None:
            return ARENA, known[0]
        offset = self._size_bytes
        if size_bytes:
            view = (ctypes.c_char * size_bytes).from_address(address)
            rest = memoryview(view).cast("B")
            position = offset
            while rest:
                written = os.pwrite(self._arena_fd, rest, position)
                position += written
                rest = rest[written:]
        self._size_bytes = offset + size_bytes + -size_bytes % _ALIGNMENT
        self._written[address, size_bytes] = offset, storage
        return ARENA, offset
