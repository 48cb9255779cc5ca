"""The side of sessions inside an interpreter: opens packages, holds and calls objects."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Final, cast

import torch

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.runtime.guest.fast_layers.quickening import quicken
from tfs.runtime.guest.freed_memory import give_back
from tfs.runtime.guest.guest_model import one_line
from tfs.runtime.guest.platforms.torch_package import close_package, open_package
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.sessions.movable_pickle import (
    OpenPackage,
    pickle_movable,
    unpickle_movable,
)
from tfs.runtime.guest.sessions.value_codec import Ref, decode, encode

Request = Mapping[str, object]

_PAUSE_FACTOR: Final = 50.0  # collections take a fiftieth of the time at most


class SessionGuest:
    """Packages, movable objects and sessions of one interpreter. Single-threaded.

    One request, one reply, both by :mod:`~tfs.runtime.guest.sessions.value_codec`; descriptors
    travel beside them. References live until their session ends.

    Args:
        is_interrupted: Whether Ctrl-C arrives here and is passed on to the caller.
        on_map: Called with the number of bytes of weights that are mapped; negative
            when they are unmapped.

    """

    def __init__(
        self,
        *,
        is_interrupted: bool = False,
        on_map: Callable[[int], None] | None = None,
    ) -> None:
        self._is_interrupted = is_interrupted
        self._on_map = on_map
        self._packages: dict[int, OpenPackage] = {}
        self._movables: dict[int, object] = {}
        self._sessions: dict[int, dict[int, object]] = {}
        self._next_ref = 0
        self._next_collection_s = 0.0  # monotonic

    def handle(self, request: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        """Answers a request; the caller closes its descriptors, and sends those of the reply.

        Raises:
            ServingError: Saying what failed; nothing is left of the attempt.

        """
        form = cast("dict[str, object]", decode(request))
        session = self._sessions.get(cast("int", form.get("session", -1)), {})
        operations: dict[object, Callable[..., object]] = {
            "open_package": self._open_package,
            "close_package": self._close_package,
            "load_movable": self._load_movable,
            "drop_movable": self._drop_movable,
            "begin": self._begin,
            "end": self._end,
            "global": self._global,
            "attr": self._attr,
            "call": self._call,
            "value": self._value,
            "create_movable": self._create_movable,
            "take_movable": self._take_movable,
            "discard": self._discard,
            "run": self._run,
        }
        reply_fds: list[int] = []
        try:
            outcome = operations[form["op"]](form, session, fds, reply_fds)
            return encode(outcome), reply_fds
        except ServingError:
            raise
        except BaseException as error:  # user code may raise anything, SystemExit too
            raise self._fault(str(form["op"]), error) from error

    def run(
        self, movable_id: int, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Calls a movable object with values as they are, for a caller in the same process.

        Raises:
            ServingError: Saying what failed.

        """
        try:
            return self._apply(
                self._movables[movable_id], {"args": args, "kwargs": kwargs}, {}
            )
        except ServingError:
            raise
        except BaseException as error:  # as above
            raise self._fault("run", error) from error

    def _fault(self, operation: str, error: BaseException) -> ServingError:
        if self._is_interrupted and isinstance(error, KeyboardInterrupt):
            raise error
        return Internal(f"{operation} failed: {one_line(error)}{_place_of(error)}")

    def close(self) -> None:
        """Drops everything; modules of packages leave the interpreter. Idempotent."""
        self._sessions.clear()
        self._movables.clear()
        while self._packages:
            _, package = self._packages.popitem()
            close_package(package.importer)
            del package
        give_back()

    # -- packages and movable objects ----------------------------------------------

    def _open_package(
        self, form: Request, _session: object, fds: list[int], _reply: object
    ) -> object:
        package_id = cast("int", form["package"])
        if package_id not in self._packages:
            file = SealedFile.adopt(os.dup(fds[0]))
            try:
                importer = open_package(file, str(form["name"]), self._on_map)
            finally:
                file.close()
            self._packages[package_id] = OpenPackage(package_id, importer)
        return None

    def _close_package(
        self, form: Request, _session: object, _fds: object, _reply: object
    ) -> object:
        package = self._packages.pop(cast("int", form["package"]), None)
        if package is not None:
            close_package(package.importer)
            del package
            give_back()
        return None

    def _load_movable(
        self, form: Request, _session: object, fds: list[int], _reply: object
    ) -> object:
        movable_id = cast("int", form["movable"])
        if movable_id in self._movables:
            return None
        packages = self._packages_of(form)
        if "resource" in form:
            (package,) = packages.values()
            name, resource = str(form["module"]), str(form["resource"])
            record = f"{name.replace('.', '/')}/{resource}"
            if not package.importer.zip_reader.has_record(record):
                raise NotFound(f"the package holds no {resource!r} in {name!r}")
            obj = package.importer.load_pickle(name, resource)
        else:
            arena = SealedFile.adopt(os.dup(fds[0]))
            try:
                data = cast("bytes", form["data"])
                obj = unpickle_movable(data, arena, packages, self._on_map)
            finally:
                arena.close()
        if isinstance(obj, torch.nn.Module):
            obj.eval()
            quicken(obj)
        self._movables[movable_id] = obj
        return None

    def _drop_movable(
        self, form: Request, _session: object, _fds: object, _reply: object
    ) -> object:
        if self._movables.pop(cast("int", form["movable"]), None) is not None:
            give_back()
        return None

    def _discard(
        self, form: Request, _session: object, _fds: object, _reply: object
    ) -> object:
        """Drops movable objects and packages that nobody refers to any more."""
        for movable_id in cast("list[int]", form["movables"]):
            self._movables.pop(movable_id, None)
        for package_id in cast("list[int]", form["packages"]):
            package = self._packages.pop(package_id, None)
            if package is not None:
                close_package(package.importer)
                del package
        self._collect_at_times()
        return None

    def _collect_at_times(self) -> None:
        """Collects garbage, unless that was done recently; then it is left for the next time.

        A program that has models in its own process may have millions of objects, and
        an object to drop with each request.
        """
        begun_s = time.monotonic()
        if begun_s < self._next_collection_s:
            return
        give_back()
        ended_s = time.monotonic()
        self._next_collection_s = ended_s + _PAUSE_FACTOR * (ended_s - begun_s)

    # -- sessions --------------------------------------------------------------------

    def _begin(
        self, form: Request, _session: object, _fds: object, _reply: object
    ) -> object:
        """Starts a session; its first reference is the object that it is about."""
        about: object = None
        if "movable" in form:
            about = self._movables[cast("int", form["movable"])]
        elif "package" in form:
            about = self._packages[cast("int", form["package"])].importer
        session: dict[int, object] = {}
        self._sessions[cast("int", form["session"])] = session
        return self._keep(session, about)

    def _end(
        self, form: Request, _session: object, _fds: object, _reply: object
    ) -> object:
        self._sessions.pop(cast("int", form["session"]), None)
        return None

    def _global(
        self, form: Request, session: dict[int, object], _fds: object, _reply: object
    ) -> object:
        module, name = str(form["module"]), str(form["name"])
        for package in self._packages_of(form).values():
            try:
                found = package.importer.import_module(module)
                break
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise  # the module is there, something it imports is not
        else:
            found = importlib.import_module(module)
        return self._keep(session, getattr(found, name))

    def _attr(
        self, form: Request, session: dict[int, object], _fds: object, _reply: object
    ) -> object:
        target = self._get(session, form["target"])
        return self._keep(session, getattr(target, str(form["name"])))

    def _call(
        self, form: Request, session: dict[int, object], _fds: object, _reply: object
    ) -> object:
        target = self._get(session, form["target"])
        return self._keep(session, self._apply(target, form, session))

    def _value(
        self, form: Request, session: dict[int, object], _fds: object, _reply: object
    ) -> object:
        return self._get(session, form["target"])

    def _create_movable(
        self, form: Request, session: dict[int, object], _fds: object, reply: list[int]
    ) -> object:
        packages = self._packages_of(form)
        obj = self._get(session, form["target"])
        pickled = pickle_movable(obj, list(packages.values()))
        reply.append(pickled.arena_fd)
        return pickled.data

    def _take_movable(
        self, form: Request, session: dict[int, object], _fds: object, _reply: object
    ) -> object:
        return self._keep(session, self._movables[cast("int", form["movable"])])

    def _run(
        self, form: Request, _session: object, _fds: object, _reply: object
    ) -> object:
        """Calls a movable object and returns its value at once, without a session."""
        target = self._movables[cast("int", form["movable"])]
        return self._apply(target, form, {})

    def _apply(
        self, target: object, form: Request, session: dict[int, object]
    ) -> object:
        if not callable(target):
            raise InvalidArgument(f"a {type(target).__name__} cannot be called")
        arguments = cast("tuple[object, ...]", self._resolved(form["args"], session))
        keywords = cast("dict[str, object]", self._resolved(form["kwargs"], session))
        with torch.inference_mode():
            return target(*arguments, **keywords)

    def _resolved(self, value: object, session: dict[int, object]) -> object:
        """Returns ``value`` with the objects its references stand for."""
        match value:
            case Ref():
                return self._get(session, value)
            case list():
                return [self._resolved(item, session) for item in value]
            case tuple():
                return tuple(self._resolved(item, session) for item in value)
            case dict():
                return {
                    key: self._resolved(item, session) for key, item in value.items()
                }
        return value

    def _packages_of(self, form: Request) -> dict[int, OpenPackage]:
        ids = cast("list[int]", form["packages"])
        if not self._packages.keys() >= {*ids}:
            raise FailedPrecondition(
                "a package of this session was closed; load it again, and begin anew"
            )
        return {package_id: self._packages[package_id] for package_id in ids}

    def _keep(self, session: dict[int, object], obj: object) -> Ref:
        self._next_ref += 1
        session[self._next_ref] = obj
        return Ref(self._next_ref)

    def _get(self, session: dict[int, object], ref: object) -> object:
        if not isinstance(ref, Ref) or ref.ref_id not in session:
            raise InvalidArgument(
                "this value belongs to another session, or to one that has ended"
            )
        return session[ref.ref_id]


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
