"""The paper's library API: several interpreters behind one load balancer.

    with InterpreterManager(8) as manager:
        package = manager.load_package("mobile_net_v3.pt")
        model = package.load_pickle("model", "model.pkl")
        result = model(torch.rand(1, 3, 224, 224))     # any thread, any interpreter

        with package.acquire_session() as session:      # one interpreter, several steps
            cpu_model = session.self.attr("load_pickle")("model", "model.pkl")
            wrap = session.global_("gpu_inference", "GPUModel")
            gpu_model = session.create_movable(wrap(cpu_model))

Source: "Using Python for Model Inference in Deep Learning" (torch::deploy), section
4.3 and figure 2. As there, the library has no threads that run models: callers bring
theirs. Needs no server; it runs a serving loop of its own for the processes.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, NoReturn, Self, cast

from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.dlmopen.dlmopen_interpreter import DlmopenInterpreter
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.value_codec import Ref
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.zygote_client import ZygoteClient
from tfs.runtime.session_channel import (
    InlineSessionChannel,
    SessionChannel,
)
from tfs.runtime.session_interpreter import SessionInterpreter

_CLOSE_S = 30.0
_BACKENDS: Final = ("process", "dlmopen", "inline")


class InterpreterManager:
    """Hands out interpreters, the least used first. Thread-safe; a context manager.

    Args:
        num_interpreters: How many; None for one per core this process may use, and of
            "dlmopen" no more than are likely to have room.
        backend: "process"; "dlmopen" for private CPythons in this process; or
            "inline", where interpreters share the GIL.
        options: For processes.

    It and all that it makes belong to the process it was made in: a forked one makes its
    own.

    Raises:
        FailedPrecondition: This host cannot run backend "dlmopen"; says why. The first
            manager of a process that asks for it blocks for seconds to find out.

    """

    def __init__(
        self,
        num_interpreters: int | None = None,
        *,
        backend: Literal["process", "dlmopen", "inline"] = "process",
        options: ProcessOptions | None = None,
    ) -> None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}")
        num = num_interpreters
        if num is None:
            num = len(os.sched_getaffinity(0))
            if backend == "dlmopen":
                num = min(num, dlmopen_probe.most_interpreters())
        if num < 1:
            raise ValueError("num_interpreters must be >= 1")
        self._ids = itertools.count(1)
        self._closed = False
        self._loop: ServingLoop | None = None
        self._zygote: ZygoteClient | None = None
        channels: list[SessionChannel] = []
        self._processes: list[ProcessInterpreter] = []
        self._private: list[DlmopenInterpreter] = []
        if backend == "dlmopen":
            dlmopen_probe.require(num)
            self._private = [DlmopenInterpreter(f"dlmopen-{i}") for i in range(num)]
            channels += self._private
        elif backend == "inline":
            channels += [InlineSessionChannel(f"inline-{i}") for i in range(num)]
        else:
            self._loop = ServingLoop(name="interpreter-manager")
            self._zygote = ZygoteClient(self._loop)
            self._processes = [
                ProcessInterpreter(f"process-{i}", self._loop, self._zygote, options)
                for i in range(num)
            ]
            channels += self._processes
            self._loop.start()
        self._interpreters = [SessionInterpreter(channel) for channel in channels]
        # Guards num_users of every interpreter; leaf lock.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_interpreters(self) -> int:
        """How many there are."""
        return len(self._interpreters)

    def load_package(self, path: str | os.PathLike[str]) -> Package:
        """Opens an archive saved with ``torch.package``; reads it into memory once.

        Raises:
            NotFound: There is no such file.
            InvalidArgument: It is no such archive; says what to pass instead.

        """
        self._check_open()
        name = os.path.basename(os.path.abspath(path))
        _check_archive(os.fspath(path), name)
        try:
            file = SealedFile.copy_of(os.fspath(path))
        except OSError as error:
            raise NotFound(f"cannot read package {name!r}: {error.strerror}") from error
        return Package(self, next(self._ids), name, file)

    def acquire_session(self) -> InterpreterSession:
        """Starts a session with the least used interpreter; ``self`` is None there."""
        return self.begin_session(())

    def close(self) -> None:
        """Ends all interpreters; sessions and objects are of no use then. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if not self._interpreters[0].is_of_this_process:
            return  # what a fork holds of them is of no use, and not its to end
        if self._loop is None:
            for interpreter in self._interpreters:
                interpreter.channel.let_go()
            for private in self._private:
                private.close(time.monotonic() + _CLOSE_S)
            return
        deadline_s = time.monotonic() + _CLOSE_S
        for process in self._processes:
            process.close(deadline_s)
        done = threading.Event()
        zygote = self._zygote

        def end() -> None:
            if zygote is not None:
                zygote.close()
            done.set()

        self._loop.post(end)
        done.wait(_CLOSE_S)
        self._loop.close(deadline_s)

    # -- for packages, objects and sessions -----------------------------------------

    def next_id(self) -> int:
        """Returns a number nobody else has."""
        return next(self._ids)

    @contextmanager
    def least_used(self) -> Iterator[SessionInterpreter]:
        """Lends an interpreter, counted while it is lent."""
        interpreter = self.take()
        try:
            yield interpreter
        finally:
            self.give_back(interpreter)

    def take(self) -> SessionInterpreter:
        """Returns the least used interpreter, one use more on its count."""
        self._check_open()
        with self._lock:
            interpreter = min(self._interpreters, key=lambda each: each.load)
            interpreter.num_users += 1
        try:
            interpreter.make_ready()
        except BaseException:
            self.give_back(interpreter)
            raise
        return interpreter

    def give_back(self, interpreter: SessionInterpreter) -> None:
        """Takes one use off an interpreter's count."""
        with self._lock:
            interpreter.num_users -= 1

    def begin_session(
        self,
        needs: tuple[Package | MovableObject, ...],
        **about: object,
    ) -> InterpreterSession:
        """Starts a session with what it needs materialised."""
        interpreter = self.take()
        try:
            for each in needs:
                interpreter.materialise(each)
            session_id = self.next_id()
            ref = interpreter.ask("begin", session=session_id, **about)
        except BaseException:
            self.give_back(interpreter)
            raise
        packages = [
            package
            for each in needs
            for package in ([each] if isinstance(each, Package) else each.packages)
        ]
        return InterpreterSession(
            self, interpreter, session_id, cast("Ref", ref), packages
        )

    def forget(self, op: str, key: str, number: int) -> None:
        """Drops something everywhere it was materialised; never raises."""
        if self._closed:
            return
        for interpreter in self._interpreters:
            interpreter.forget(op, key, number)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this InterpreterManager is closed")
        self._interpreters[0].check_process()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an InterpreterManager, its packages and objects stay in their process: "
            "make one in the other process, and load the package there"
        )


def _check_archive(path: str, name: str) -> None:
    """Refuses what is no archive of torch.package, before it is read into memory."""
    if os.path.isdir(path):
        raise InvalidArgument(
            f"{name!r} is a directory; pass the archive in it, such as model.pt"
        )
    if not os.path.exists(path):
        return  # reading it says so
    is_archive = False
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        is_archive = any(each.endswith("/.data/extern_modules") for each in names)
    if not is_archive:
        raise InvalidArgument(
            f"{name!r} is no archive of torch.package; write one with "
            "torch.package.PackageExporter or tfs.export.save (torch.save and "
            "torch.jit.save write others)"
        )


class Package:
    """An archive of ``torch.package``, for all interpreters. Thread-safe."""

    def __init__(
        self, manager: InterpreterManager, number: int, name: str, file: SealedFile
    ) -> None:
        self._manager = manager
        self._file = file
        self.number = number
        self.name = name
        self.packages: tuple[Package, ...] = ()  # it builds on no other

    def load_pickle(self, module: str, resource: str) -> MovableObject:
        """Returns a pickled object of the archive, for any interpreter.

        It is loaded on one interpreter now, so that errors show here.

        Raises:
            ServingError: It is not there, or does not load.

        """
        movable = MovableObject(
            self._manager,
            [self],
            lambda: ({"module": module, "resource": resource}, ()),
        )
        with self._manager.least_used() as interpreter:
            interpreter.materialise(movable)
        return movable

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the archive's ``PackageImporter``."""
        return self._manager.begin_session((self,), package=self.number)

    def materialising(self) -> tuple[str, dict[str, object], tuple[int, ...]]:
        """Returns the request that opens the archive in an interpreter."""
        if self._file.fd < 0:
            raise FailedPrecondition(f"package {self.name!r} is closed")
        fields: dict[str, object] = {"package": self.number, "name": self.name}
        return "open_package", fields, (self._file.fd,)

    def close(self) -> None:
        """Gives the memory back once no object of it is used any more; idempotent."""
        self._manager.forget("close_package", "package", self.number)
        self._file.close()


class MovableObject:
    """An object that any interpreter can have. Thread-safe.

    Serialised once; an interpreter makes its copy when it first needs it, and the
    copies share the tensors' memory.
    """

    def __init__(
        self,
        manager: InterpreterManager,
        packages: list[Package],
        describe: Callable[[], tuple[dict[str, object], tuple[int, ...]]],
        arena: SealedFile | None = None,
    ) -> None:
        self._manager = manager
        self._describe = describe
        self.packages = packages
        self.number = manager.next_id()
        if arena is not None:
            weakref.finalize(self, arena.close)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Calls the object on the least used interpreter; returns the value.

        Arguments and result are tensors, plain values and containers of them.

        Raises:
            ServingError: The call failed, or its interpreter died over it.

        """
        with self._manager.least_used() as interpreter:
            interpreter.materialise(self)
            return interpreter.run(self.number, args, kwargs)

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the object."""
        return self._manager.begin_session((self,), movable=self.number)

    def materialising(self) -> tuple[str, dict[str, object], tuple[int, ...]]:
        """Returns the request that makes the object in an interpreter."""
        fields, fds = self._describe()
        packages = [package.number for package in self.packages]
        return (
            "load_movable",
            {"movable": self.number, "packages": packages, **fields},
            fds,
        )

    def drop(self) -> None:
        """Removes the copies interpreters made; the next use makes them again."""
        self._manager.forget("drop_movable", "movable", self.number)


class InterpreterSession:
    """Direct use of one interpreter. Confined to one thread; a context manager.

    Values it returns are valid until it ends; its memory there goes with it.

    Attributes:
        self: What the session is about: a package's importer, a movable object, or
            nothing (a value that is None).

    """

    def __init__(
        self,
        manager: InterpreterManager,
        interpreter: SessionInterpreter,
        session_id: int,
        about: Ref,
        packages: list[Package],
    ) -> None:
        self._manager = manager
        self._interpreter: SessionInterpreter | None = interpreter
        self._session_id = session_id
        self._packages = packages
        self.self = RemoteObject(self, about)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def global_(self, module: str, name: str) -> RemoteObject:
        """Returns a module's attribute: of the package if it has one, else installed.

        Raises:
            ServingError: There is no such module or attribute.

        """
        packages = [package.number for package in self._packages]
        return self._object(
            self.ask("global", packages=packages, module=module, name=name)
        )

    def create_movable(self, obj: RemoteObject) -> MovableObject:
        """Returns an object of this session for all interpreters.

        Raises:
            InvalidArgument: Something in it cannot be pickled, or it is no object of
                this session.

        """
        if not isinstance(obj, RemoteObject):
            raise InvalidArgument(
                f"create_movable takes an object of this session, such as a call of "
                f"session.global_(...) gives, and got a {type(obj).__name__}; tensors "
                "and plain values are passed to calls as they are"
            )
        interpreter = self._lent()
        packages = [package.number for package in self._packages]
        value, arena_fd = interpreter.ask_for_fd(
            "create_movable",
            session=self._session_id,
            packages=packages,
            target=self.ref_of(obj),
        )
        # Sealed by whoever wrote it; sealing again would be refused.
        arena = SealedFile(arena_fd, os.fstat(arena_fd).st_size)
        return MovableObject(
            self._manager,
            list(self._packages),
            lambda: ({"data": value}, (arena.fd,)),
            arena,
        )

    def close(self) -> None:
        """Ends the session; idempotent."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is None:
            return
        try:
            interpreter.ask("end", session=self._session_id)
        except ServingError:
            return  # the interpreter is gone, and the session with it
        finally:
            self._manager.give_back(interpreter)

    # -- for RemoteObject --------------------------------------------------------------

    def ask(self, op: str, **fields: object) -> object:
        """Sends a request of this session."""
        return self._lent().ask(op, session=self._session_id, **fields)

    def ref_of(self, obj: RemoteObject) -> Ref:
        """Returns an object's reference.

        Raises:
            InvalidArgument: It is another session's.

        """
        if obj.session is not self:
            raise InvalidArgument(
                "this value belongs to another session; move it with create_movable"
            )
        return obj.ref

    def arguments(self, value: object) -> object:
        """Returns arguments with references for the objects among them."""
        match value:
            case RemoteObject():
                return self.ref_of(value)
            case list():
                return [self.arguments(item) for item in value]
            case tuple():
                return tuple(self.arguments(item) for item in value)
            case dict():
                return {key: self.arguments(item) for key, item in value.items()}
        return value

    def _object(self, ref: object) -> RemoteObject:
        return RemoteObject(self, cast("Ref", ref))

    def _lent(self) -> SessionInterpreter:
        if self._interpreter is None:
            raise FailedPrecondition("this session has ended, and its values with it")
        return self._interpreter


class RemoteObject:
    """An object in a session's interpreter. Confined to the session's thread."""

    def __init__(self, session: InterpreterSession, ref: Ref) -> None:
        self.session = session
        self.ref = ref

    def attr(self, name: str) -> RemoteObject:
        """Returns an attribute.

        Raises:
            ServingError: There is none.

        """
        reply = self.session.ask("attr", target=self.ref, name=name)
        return RemoteObject(self.session, cast("Ref", reply))

    def __call__(self, *args: object, **kwargs: object) -> RemoteObject:
        """Calls it with values and objects of this session; the result stays there.

        Raises:
            ServingError: The call failed.

        """
        reply = self.session.ask(
            "call",
            target=self.ref,
            args=self.session.arguments(args),
            kwargs=self.session.arguments(kwargs),
        )
        return RemoteObject(self.session, cast("Ref", reply))

    def value(self) -> object:
        """Returns a copy here, if it is a tensor, plain, or a container of such.

        Raises:
            InvalidArgument: It is something else.

        """
        return self.session.ask("value", target=self.ref)
