"""Direct use of interpreters by library users: packages, movable objects, sessions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Self, cast

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ServingError,
)
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.sessions.value_codec import Ref, too_deep
from tfs.runtime.interpreter_lender import InterpreterLender
from tfs.runtime.session_interpreter import SessionInterpreter


class Package:
    """An archive of ``torch.package``, for all interpreters. Thread-safe.

    Its memory is freed when nobody refers to it or to an object of it any more, by
    ``close``, or when the manager closes.
    """

    def __init__(self, lender: InterpreterLender, name: str, file: SealedFile) -> None:
        self._lender = lender
        self._file = lender.own(file)
        self.number = lender.next_id()
        self.name = name
        _discard_with(self, lender, "package", self.number)
        weakref.finalize(self, file.close)
        self.packages: tuple[Package, ...] = ()  # it builds on no other

    def load_pickle(self, module: str, resource: str) -> MovableObject:
        """Returns a pickled object of the archive, for any interpreter.

        It is loaded on one interpreter at once, so that errors show here.

        Raises:
            ServingError: The archive has no such object, or it does not load.

        """
        movable = MovableObject(
            self._lender,
            [self],
            lambda: ({"module": module, "resource": resource}, ()),
        )
        with self._lender.least_used() as interpreter:
            interpreter.materialise(movable)
        return movable

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the archive's ``PackageImporter``."""
        return begin_session(self._lender, (self,), package=self.number)

    def materialising(self) -> tuple[str, dict[str, object], tuple[int, ...]]:
        """Returns the request that opens the archive in an interpreter."""
        if self._file.fd < 0:
            raise FailedPrecondition(f"package {self.name!r} is closed")
        fields: dict[str, object] = {"package": self.number, "name": self.name}
        return "open_package", fields, (self._file.fd,)

    def close(self) -> None:
        """Gives the memory back; idempotent.

        Objects of it that sessions hold stay valid until the sessions end. Nothing else
        can be made from it, and its movable objects cannot be used any more.
        """
        self._lender.forget("close_package", "package", self.number)
        self._file.close()


class MovableObject:
    """An object that can be used on any interpreter. Thread-safe.

    It is serialised once. An interpreter makes its copy when it first needs one, and
    all copies share the tensors' memory. That is freed when nobody refers to the object
    any more, or when the manager closes.
    """

    def __init__(
        self,
        lender: InterpreterLender,
        packages: list[Package],
        describe: Callable[[], tuple[dict[str, object], tuple[int, ...]]],
        arena: SealedFile | None = None,
    ) -> None:
        self.lender = lender
        self._describe = describe
        self.packages = packages
        self.number = lender.next_id()
        _discard_with(self, lender, "movable", self.number)
        if arena is not None:
            weakref.finalize(self, lender.own(arena).close)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Calls the object on the least used interpreter; returns the value.

        Arguments and result are tensors, plain values and containers of them.

        Raises:
            ServingError: The call failed, or its interpreter died over it.

        """
        with self.lender.least_used() as interpreter:
            interpreter.materialise(self)
            return interpreter.run(self.number, args, kwargs)

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the object."""
        return begin_session(self.lender, (self,), movable=self.number)

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
        self.lender.forget("drop_movable", "movable", self.number)


def _discard_with(
    thing: Package | MovableObject, lender: InterpreterLender, key: str, number: int
) -> None:
    """Has interpreters drop an object once it is garbage in this process."""
    weakref.finalize(thing, lender.discard, key, number).atexit = False


def begin_session(
    lender: InterpreterLender, needs: Sequence[Package | MovableObject], **about: object
) -> InterpreterSession:
    """Starts a session on the least used interpreter, which makes what the session needs.

    Args:
        lender: Lends the interpreters.
        needs: What the interpreter has to make first.
        about: Says what the session's ``self`` is.

    """
    interpreter = lender.take()
    try:
        for each in needs:
            interpreter.materialise(each)
        session_id = lender.next_id()
        ref = interpreter.ask("begin", session=session_id, **about)
    except BaseException:
        lender.give_back(interpreter)
        raise
    packages = [
        package
        for each in needs
        for package in ([each] if isinstance(each, Package) else each.packages)
    ]
    return InterpreterSession(
        lender, interpreter, session_id, cast("Ref", ref), packages
    )


class InterpreterSession:
    """Direct use of one interpreter. Confined to one thread; a context manager.

    Objects of the session are valid until it ends; their memory is freed with it.

    Attributes:
        self: The object the session was acquired from: a package's importer, a movable
            object, or a value that is None.

    """

    def __init__(
        self,
        lender: InterpreterLender,
        interpreter: SessionInterpreter,
        session_id: int,
        about: Ref,
        packages: list[Package],
    ) -> None:
        self._lender = lender
        self._interpreter: SessionInterpreter | None = interpreter
        self._generation = interpreter.generation
        self._session_id = session_id
        self._packages = packages
        # Movable objects that were passed to it, by number, and the packages they build on.
        self._guests: dict[int, Ref] = {}
        self._guest_packages: list[Package] = []
        self.self = RemoteObject(self, about)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def global_(self, module: str, name: str) -> RemoteObject:
        """Returns a module's attribute: from the package if it has the module, else installed.

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
        packages = [*self._packages, *self._guest_packages]
        value, arena_fd = interpreter.ask_for_fd(
            "create_movable",
            session=self._session_id,
            packages=[package.number for package in packages],
            target=self.ref_of(obj),
        )
        # Sealed by whoever wrote it; sealing again would be refused.
        arena = SealedFile.adopt(arena_fd)
        return MovableObject(
            self._lender,
            packages,
            lambda: ({"data": value}, (arena.fd,)),
            arena,
        )

    def close(self) -> None:
        """Ends the session; idempotent."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is None:
            return
        try:
            if interpreter.generation == self._generation:
                interpreter.ask("end", session=self._session_id)
        except ServingError:
            return  # the interpreter is gone, and the session with it
        finally:
            self._lender.give_back(interpreter)

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
        """Returns arguments with references for the objects among them.

        Raises:
            InvalidArgument: One is not of this session, or contains itself.

        """
        try:
            return self._argument(value)
        except RecursionError as error:
            raise too_deep() from error

    def _argument(self, value: object) -> object:
        match value:
            case RemoteObject():
                return self.ref_of(value)
            case MovableObject():
                return self._ref_of_movable(value)
            case list():
                return [self._argument(item) for item in value]
            case tuple():
                return tuple(self._argument(item) for item in value)
            case dict():
                return {key: self._argument(item) for key, item in value.items()}
        return value

    def _ref_of_movable(self, movable: MovableObject) -> Ref:
        """Returns a movable object's copy in this session's interpreter."""
        known = self._guests.get(movable.number)
        if known is not None:
            return known
        if movable.lender is not self._lender:
            raise InvalidArgument("this object belongs to another InterpreterManager")
        self._lent().materialise(movable)
        ref = cast("Ref", self.ask("take_movable", movable=movable.number))
        self._guests[movable.number] = ref
        self._guest_packages += [
            package
            for package in movable.packages
            if package not in self._packages and package not in self._guest_packages
        ]
        return ref

    def _object(self, ref: object) -> RemoteObject:
        return RemoteObject(self, cast("Ref", ref))

    def _lent(self) -> SessionInterpreter:
        if self._interpreter is None:
            raise FailedPrecondition("this session has ended, and its values with it")
        if self._interpreter.generation != self._generation:
            raise Internal(
                "the interpreter of this session has ended; what it held is gone, begin "
                "anew"
            )
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
        """Calls it with values, and objects of this session; the result stays there.

        A movable object among the arguments is made in this session's interpreter.

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
        """Returns a copy in this process, of tensors, plain values or containers of them.

        Raises:
            InvalidArgument: It is something else.

        """
        return self.session.ask("value", target=self.ref)
