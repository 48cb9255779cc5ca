"""What library users hold: packages, movable objects, sessions and their objects."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Self

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ServingError,
)
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.sessions.value_codec import Ref
from tfs.runtime.library.interpreters import InterpreterLender, LibraryInterpreter


class Package:
    """An archive of ``torch.package``, for all interpreters. Thread-safe.

    Its memory is freed when nobody refers to it or to an object of it any more, by
    ``close``, or when the manager closes.
    """

    def __init__(self, lender: InterpreterLender, name: str, file: SealedFile) -> None:
        self.name = name
        self.number = lender.new_number()
        self.packages: tuple[Package, ...] = ()  # it builds on no other
        self._lender = lender
        self._file = lender.own(file)
        _drop_with(self, lender)
        weakref.finalize(self, file.close)

    def load_pickle(self, module: str, resource: str) -> MovableObject:
        """Returns a pickled object of the archive, for any interpreter.

        It is loaded on one interpreter at once, so that errors show here.

        Raises:
            ServingError: The archive has no such object, or it does not load.

        """

        def make(interpreter: LibraryInterpreter, number: int) -> None:
            interpreter.ask(
                "load_pickle",
                into=number,
                package=self.number,
                module=module,
                resource=resource,
            )

        movable = MovableObject(self._lender, (self,), make)
        with self._lender.least_used() as interpreter:
            interpreter.materialise(movable)
        return movable

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the archive's ``PackageImporter``."""
        return InterpreterSession(self._lender, self)

    def make_in(self, interpreter: LibraryInterpreter) -> None:
        """Opens the archive in an interpreter."""
        if self._file.fd < 0:
            raise FailedPrecondition(f"package {self.name!r} is closed")
        interpreter.ask(
            "open",
            into=self.number,
            fds=(self._file.fd,),
            number=self.number,
            name=self.name,
        )

    def close(self) -> None:
        """Gives the memory back; idempotent.

        Objects of it that sessions hold stay valid until the sessions end. Nothing else
        can be made from it, and its movable objects cannot be used any more.
        """
        self._lender.drop(self.number)
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
        packages: tuple[Package, ...],
        make: Callable[[LibraryInterpreter, int], None],
    ) -> None:
        self.number = lender.new_number()
        self.packages = packages
        self.lender = lender
        self._make = make
        _drop_with(self, lender)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Calls the object on the least used interpreter; returns the value.

        Arguments and result are tensors, plain values and containers of them.

        Raises:
            ServingError: The call failed, or its interpreter died over it.

        """
        with self.lender.least_used() as interpreter:
            interpreter.materialise(self)
            return interpreter.ask(
                "call", target=Ref(self.number), args=args, kwargs=kwargs
            )

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the object."""
        return InterpreterSession(self.lender, self)

    def make_in(self, interpreter: LibraryInterpreter) -> None:
        """Makes the object in an interpreter that has its packages."""
        self._make(interpreter, self.number)

    def drop(self) -> None:
        """Removes the copies interpreters made; the next use makes them again."""
        self.lender.drop(self.number)


def _drop_with(thing: Package | MovableObject, lender: InterpreterLender) -> None:
    """Has interpreters drop a thing once it is garbage in this process."""
    weakref.finalize(thing, lender.drop_later, thing.number).atexit = False


class InterpreterSession:
    """Direct use of one interpreter. Confined to one thread; a context manager.

    Objects of the session are valid until it ends; their memory is freed with it.
    Making one blocks until the least used interpreter has what it needs.

    Attributes:
        self: The object the session was acquired from: a package's importer, a movable
            object, or a value that is None.

    """

    def __init__(
        self, lender: InterpreterLender, origin: Package | MovableObject | None = None
    ) -> None:
        self._lender = lender
        self._numbers: list[int] = []  # of its objects
        self._packages: tuple[Package, ...] = ()
        if isinstance(origin, Package):
            self._packages = (origin,)
        elif origin is not None:
            self._packages = origin.packages
        # What movable objects that were passed to it build on.
        self._other_packages: tuple[Package, ...] = ()
        self._interpreter: LibraryInterpreter | None = lender.take()
        self._generation = self._interpreter.generation
        try:
            if origin is not None:
                self._interpreter.materialise(origin)
                self._generation = self._interpreter.generation
            self.self = self.keep("get", target=origin and Ref(origin.number))
        except BaseException:
            lender.give_back(self._interpreter)
            raise

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
        return self.keep("global", packages=packages, module=module, name=name)

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
        packages = (*self._packages, *self._other_packages)
        numbers = [package.number for package in packages]
        fields = {"target": obj, "packages": numbers}
        data, (arena_fd,) = self._exchange("pickle", None, fields)
        # Whoever wrote it has sealed it.
        arena = self._lender.own(SealedFile.adopt(arena_fd))

        def make(interpreter: LibraryInterpreter, number: int) -> None:
            interpreter.ask(
                "unpickle", into=number, fds=(arena.fd,), data=data, packages=numbers
            )

        movable = MovableObject(self._lender, packages, make)
        weakref.finalize(movable, arena.close)
        return movable

    def close(self) -> None:
        """Ends the session; idempotent."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is None:
            return
        try:
            if interpreter.generation == self._generation:
                interpreter.ask("drop", numbers=self._numbers, give_back=False)
        except ServingError:
            return  # the interpreter is gone, and the session with it
        finally:
            self._lender.give_back(interpreter)

    # -- for RemoteObject --------------------------------------------------------------

    def ask(self, op: str, **fields: object) -> object:
        """Sends a request whose fields may refer to objects; returns the value."""
        return self._exchange(op, None, fields)[0]

    def keep(self, op: str, **fields: object) -> RemoteObject:
        """As ``ask``, but the outcome stays there, as an object of this session."""
        number = self._lender.new_number()
        self._exchange(op, number, fields)
        self._numbers.append(number)
        return RemoteObject(self, number)

    def _exchange(
        self, op: str, into: int | None, fields: Mapping[str, object]
    ) -> tuple[object, list[int]]:
        interpreter = self._lent()
        return interpreter.exchange(op, into, fields, number_of=self._number_of)

    def _number_of(self, obj: object) -> int | None:
        """Returns the number of an object of this session; None for a plain value.

        Raises:
            InvalidArgument: It is another session's, or another manager's.

        """
        if isinstance(obj, RemoteObject):
            if obj.session is not self:
                raise InvalidArgument(
                    "this value belongs to another session; move it with create_movable"
                )
            return obj.number
        if not isinstance(obj, MovableObject):
            return None
        if obj.lender is not self._lender:
            raise InvalidArgument("this object belongs to another InterpreterManager")
        self._lent().materialise(obj)
        known = {*self._packages, *self._other_packages}
        self._other_packages += tuple(
            each for each in obj.packages if each not in known
        )
        return obj.number

    def _lent(self) -> LibraryInterpreter:
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

    def __init__(self, session: InterpreterSession, number: int) -> None:
        self.session = session
        self.number = number

    def attr(self, name: str) -> RemoteObject:
        """Returns an attribute.

        Raises:
            ServingError: There is none.

        """
        return self.session.keep("attr", target=self, name=name)

    def __call__(self, *args: object, **kwargs: object) -> RemoteObject:
        """Calls it with values, and objects of this session; the result stays there.

        A movable object among the arguments is made in this session's interpreter.

        Raises:
            ServingError: The call failed.

        """
        return self.session.keep("call", target=self, args=args, kwargs=kwargs)

    def value(self) -> object:
        """Returns a copy in this process, of tensors, plain values or containers of them.

        Raises:
            InvalidArgument: It is something else.

        """
        return self.session.ask("get", target=self)
