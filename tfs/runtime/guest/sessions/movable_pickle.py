"""Moves Python objects between interpreters, with one copy of their tensors for all.

Source: "Using Python for Model Inference in Deep Learning", section 4.3. An object is
pickled once. The storages of its tensors stay out of the pickle: they are written once
into a memfd that every interpreter maps.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch.package._package_pickler import PackagePickler
from torch.package._package_unpickler import PackageUnpickler
from torch.package.importer import OrderedImporter, sys_importer
from torch.package.package_importer import PackageImporter

from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd

_ALIGNMENT: Final = 64

_Place: TypeAlias = "tuple[int, int, torch.dtype | None]"
"""Offset and bytes of a storage, and the dtype of a typed one."""


@dataclass(frozen=True, slots=True)
class Pickled:
    """A pickled object; the receiver owns ``arena_fd``, which is sealed."""

    data: bytes
    arena_fd: int


def pickle_movable(obj: object, packages: Sequence[PackageImporter]) -> Pickled:
    """Pickles an object whose classes come from ``packages`` or are installed.

    Raises:
        InvalidArgument: Something in it cannot be pickled.

    """
    buffer = io.BytesIO()
    arena_fd = new_memfd("movable")
    pickler = PackagePickler(_importer(packages), buffer, protocol=4)
    pickler._persistent_id = _Arena(arena_fd).persistent_id
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
    packages: Sequence[PackageImporter],
    on_map: Callable[[int], None] | None = None,
) -> object:
    """Returns the object; its tensors are views of the arena.

    Args:
        data: The object's pickle.
        arena: Contains the storages.
        packages: The packages with which it was pickled.
        on_map: Told how much of the arena is mapped; see :meth:`SealedFile.map`.

    """
    mapping = arena.map(on_map) if arena.size_bytes else None

    def storage_at(place: _Place) -> object:
        offset, size_bytes, dtype = place
        if mapping is None or not size_bytes:
            elements = torch.empty(0, dtype=torch.uint8)
        else:
            elements = torch.frombuffer(
                mapping, dtype=torch.uint8, count=size_bytes, offset=offset
            )
        # Untyped storages are wrapped too, as torch.load does it: the functions that
        # rebuild tensors of newer dtypes accept nothing else.
        return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
            wrap_storage=elements.untyped_storage(),
            dtype=dtype or torch.uint8,
            _internal=True,
        )

    unpickler = PackageUnpickler(_importer(packages), io.BytesIO(data))
    unpickler.persistent_load = storage_at  # type: ignore[assignment, method-assign]
    found: object = unpickler.load()
    return found


def _importer(packages: Sequence[PackageImporter]) -> OrderedImporter:
    return OrderedImporter(*packages, sys_importer)  # type: ignore[no-untyped-call]


class _Arena:
    """Writes storages one after another, each once, and says where they lie."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size_bytes = 0
        # By address. The storages are kept alive, so that no address is used again.
        self._written: dict[tuple[int, int], tuple[int, torch.UntypedStorage]] = {}

    def persistent_id(self, obj: object) -> _Place | None:
        """Returns the place of a storage; None for everything else."""
        if isinstance(obj, torch.storage.TypedStorage):
            storage = obj._untyped_storage
            return self._offset(storage), storage.nbytes(), obj.dtype
        if isinstance(obj, torch.UntypedStorage):
            return self._offset(obj), obj.nbytes(), None
        return None

    def _offset(self, storage: torch.UntypedStorage) -> int:
        if storage.device.type != "cpu":
            raise ValueError(
                f"a tensor on {storage.device} cannot be moved; use .cpu()"
            )
        address, size_bytes = storage.data_ptr(), storage.nbytes()
        known = self._written.get((address, size_bytes))
        if known is not None:
            return known[0]
        offset = position = self._size_bytes
        if size_bytes:
            view = (ctypes.c_char * size_bytes).from_address(address)
            rest = memoryview(view).cast("B")
            while rest:
                written = os.pwrite(self._fd, rest, position)
                position += written
                rest = rest[written:]
        self._size_bytes = position + -position % _ALIGNMENT
        self._written[address, size_bytes] = offset, storage
        return offset
