"""The side of sessions inside an interpreter: opens packages, holds and calls objects.

Objects move between interpreters with one copy of their tensors for all ("Using Python for
Model Inference in Deep Learning", section 4.3). An object is pickled once. The storages of
its tensors stay out of the pickle: they are written once into a memfd that every
interpreter maps.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.package._package_pickler import PackagePickler
from torch.package._package_unpickler import PackageUnpickler
from torch.package.importer import OrderedImporter, sys_importer
from torch.package.package_importer import PackageImporter

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.guest_model import give_memory_back
from tfs.runtime.guest.memory_files import SealedFile, new_memfd, write_at
from tfs.runtime.guest.platforms.torch_package import close_package, open_package
from tfs.runtime.guest.sessions.value_codec import decode, encode

_ALIGNMENT: Final = 64

_Place: TypeAlias = "tuple[int, int, torch.dtype | None]"
"""Offset and bytes of a storage, and the dtype of a typed one."""


def pickle_movable(
    obj: object, packages: Sequence[PackageImporter]
) -> tuple[bytes, int]:
    """Pickles an object whose classes come from ``packages`` or are installed.

    Returns the pickle, and the sealed memfd of its storages, which the caller owns.

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
    return buffer.getvalue(), arena_fd


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
        offset = self._size_bytes
        if size_bytes:
            view = (ctypes.c_char * size_bytes).from_address(address)
            write_at(self._fd, memoryview(view), offset)
        stop = offset + size_bytes
        self._size_bytes = stop + -stop % _ALIGNMENT
        self._written[address, size_bytes] = offset, storage
        return offset


Fds = Sequence[int]
"""Descriptors that came with a request; the caller closes them."""


class SessionGuest:
    """Packages and objects of one interpreter, by number. Single-threaded.

    One request, one reply, both by :mod:`~tfs.runtime.guest.sessions.value_codec`;
    descriptors travel beside them. A request is an operation, the number under which its
    outcome is kept (None: it is returned), and the operation's fields. Outcomes are kept
    until they are dropped.

    Args:
        on_map: Called with the number of bytes of weights that are mapped; negative
            when they are unmapped.

    """

    def __init__(self, on_map: Callable[[int], None] | None = None) -> None:
        self._on_map = on_map
        self._packages: dict[int, PackageImporter] = {}
        self._objects: dict[int, object] = {}
        self._operations: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "load_pickle": self._load_pickle,
            "pickle": self._pickle,
            "unpickle": self._unpickle,
            "drop": self._drop,
            "global": self._global,
            "get": _get,
            "attr": _attr,
            "call": _call,
        }

    def handle(self, request: bytes, fds: Fds) -> tuple[bytes, list[int]]:
        """Answers a request; the caller closes its descriptors, and sends those of the reply.

        Raises:
            ServingError: Saying what failed; nothing is left of the attempt.

        """
        op = "a request"
        try:
            form: Any = decode(request, self._object)
            op, into, fields = form
            outcome = self._operations[op](fds, **fields)
            reply_fds: list[int] = []
            if op == "pickle":
                outcome, arena_fd = outcome
                reply_fds = [arena_fd]
            if into is not None:
                self._objects[into] = outcome
                outcome = None
            return encode(outcome), reply_fds
        except ServingError:
            raise
        except BaseException as error:  # user code may raise anything, SystemExit too
            why = f"{op} failed: {one_line(error)}{_place_of(error)}"
            raise Internal(why) from error

    def close(self) -> None:
        """Drops everything; modules of packages leave the interpreter. Idempotent."""
        self._drop((), [*self._objects], give_back=True)

    # -- packages and movable objects ----------------------------------------------

    def _open(self, fds: Fds, number: int, name: str) -> object:
        file = SealedFile.adopt(os.dup(fds[0]))
        try:
            importer = open_package(file, name, self._on_map)
        finally:
            file.close()
        self._packages[number] = importer
        return importer

    def _load_pickle(
        self, _fds: Fds, package: int, module: str, resource: str
    ) -> object:
        (importer,) = self._packages_of([package])
        record = f"{module.replace('.', '/')}/{resource}"
        if not importer.zip_reader.has_record(record):
            raise NotFound(f"the package holds no {resource!r} in {module!r}")
        return _ready(importer.load_pickle(module, resource))

    def _pickle(
        self, _fds: Fds, target: object, packages: Sequence[int]
    ) -> tuple[bytes, int]:
        return pickle_movable(target, self._packages_of(packages))

    def _unpickle(self, fds: Fds, data: bytes, packages: Sequence[int]) -> object:
        arena = SealedFile.adopt(os.dup(fds[0]))
        try:
            opened = self._packages_of(packages)
            return _ready(unpickle_movable(data, arena, opened, self._on_map))
        finally:
            arena.close()

    def _drop(self, _fds: Fds, numbers: Sequence[int], give_back: bool) -> None:
        for number in numbers:
            self._objects.pop(number, None)
            package = self._packages.pop(number, None)
            if package is not None:
                close_package(package)
                del package
        if give_back:
            give_memory_back()

    def _packages_of(self, numbers: Sequence[int]) -> list[PackageImporter]:
        if not self._packages.keys() >= {*numbers}:
            raise FailedPrecondition(
                "a package of this session was closed; load it again, and begin anew"
            )
        return [self._packages[number] for number in numbers]

    # -- objects -------------------------------------------------------------------

    def _global(
        self, _fds: Fds, packages: Sequence[int], module: str, name: str
    ) -> object:
        for package in self._packages_of(packages):
            try:
                return getattr(package.import_module(module), name)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise  # the module is there, something it imports is not
        return getattr(importlib.import_module(module), name)

    def _object(self, number: int) -> object:
        try:
            return self._objects[number]
        except KeyError:
            raise FailedPrecondition(
                "an object of this call was dropped; make it again"
            ) from None


def _get(_fds: Fds, target: object) -> object:
    return target


def _attr(_fds: Fds, target: object, name: str) -> object:
    return getattr(target, name)


def _call(
    _fds: Fds, target: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    if not callable(target):
        raise InvalidArgument(f"a {type(target).__name__} cannot be called")
    with torch.inference_mode():
        return target(*args, **kwargs)


def _ready(movable: object) -> object:
    if isinstance(movable, torch.nn.Module):
        movable.eval()
    return movable


def _place_of(error: BaseException) -> str:
    """Returns where in a package's code an error came up, for a message; "" elsewhere."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("<torch_package_"):
            file = code.co_filename.partition(">.")[2]
            place = f" ({file}, line {trace.tb_lineno}, in {code.co_name})"
        trace = trace.tb_next
    return place
