"""The side of sessions inside an interpreter: opens packages, holds and calls objects."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.package.package_importer import PackageImporter

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.runtime.guest import freed_memory
from tfs.runtime.guest.guest_model import one_line
from tfs.runtime.guest.platforms.torch_package import close_package, open_package
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.sessions.movable_pickle import (
    Pickled,
    pickle_movable,
    unpickle_movable,
)
from tfs.runtime.guest.sessions.value_codec import decode, encode

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
        self._operations: dict[str, Callable[..., object]] = {
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
            if isinstance(outcome, Pickled):
                reply_fds, outcome = [outcome.arena_fd], outcome.data
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

    def _pickle(self, _fds: Fds, target: object, packages: Sequence[int]) -> Pickled:
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
            freed_memory.give_back()

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
