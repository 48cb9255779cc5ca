"""What library users hold: packages, movable objects, sessions and their objects."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Self

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ServingError,
)
from tfs.runtime.guest.memory_files import SealedFile
from tfs.runtime.guest.sessions.value_codec import Ref
from tfs.runtime.library.interpreters import (
    InterpreterLender,
    LibraryInterpreter,
    Shared,
)


class Package:
    """An archive of ``torch.package``, for all interpreters. Thread-safe.

    Its memory is freed when nobody refers to it or to an object of it any more, by
    ``close``, or when the manager closes.
    """

    def __init__(self, lender: InterpreterLender, name: str, file: SealedFile) -> None:
        self.name = name
        self._lender = lender
        self._file = file

        def open_in(interpreter: LibraryInterpreter, number: int) -> None:
            if file.fd < 0:
                raise FailedPrecondition(f"package {name!r} is closed")
            interpreter.ask(
                "open", {"number": number, "name": name}, number, (file.fd,)
            )

        self.shared = Shared(lender, (), open_in, file)

    def load_pickle(self, module: str, resource: str) -> MovableObject:
        """Returns a pickled object of the archive, for any interpreter.

        It is loaded on one interpreter at once, so that errors show here.

        Raises:
            ServingError: The archive has no such object, or it does not load.

        """
        fields = {
            "package": self.shared.number,
            "module": module,
            "resource": resource,
        }

        def load_in(interpreter: LibraryInterpreter, number: int) -> None:
            interpreter.ask("load_pickle", fields, number)

        movable = MovableObject(Shared(self._lender, (self.shared,), load_in))
        with self._lender.least_used() as interpreter:
            interpreter.bring(movable.shared)
        return movable

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the archive's ``PackageImporter``."""
        return InterpreterSession(self._lender, self.shared, (self.shared,))

    def close(self) -> None:
        """Gives the memory back; idempotent.

        Objects of it that sessions hold stay valid until the sessions end. Nothing else
        can be made from it, and its movable objects cannot be used any more.
        """
        self._lender.drop(self.shared.number)
        self._file.close()


class MovableObject:
    """An object that can be used on any interpreter. Thread-safe.

    It is serialised once. An interpreter makes its copy when it first needs one, and
    all copies share the tensors' memory. That is freed when nobody refers to the object
    any more, or when the manager closes.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Calls the object on the least used interpreter; returns the value.

        Arguments and result are tensors, plain values and containers of them.

        Raises:
            ServingError: The call failed, or its interpreter died over it.

        """
        shared = self.shared
        with shared.lender.least_used() as interpreter:
            interpreter.bring(shared)
            fields = {"target": Ref(shared.number), "args": args, "kwargs": kwargs}
            return interpreter.ask("call", fields)[0]

    def acquire_session(self) -> InterpreterSession:
        """Starts a session whose ``self`` is the object."""
        shared = self.shared
        return InterpreterSession(shared.lender, shared, shared.packages)

    def drop(self) -> None:
        """Removes the copies interpreters made; the next use makes them again."""
        self.shared.lender.drop(self.shared.number)


class InterpreterSession:
    """Direct use of one interpreter. Confined to one thread; a context manager.

    Objects of the session are valid until it ends; their memory is freed with it.
    Making one blocks until the least used interpreter has what it needs.

    Attributes:
        self: The object the session was acquired from: a package's importer, a movable
            object, or a value that is None.

    """

    def __init__(
        self,
        lender: InterpreterLender,
        origin: Shared | None = None,
        packages: tuple[Shared, ...] = (),
    ) -> None:
        self._lender = lender
        self._numbers: list[int] = []  # of its objects
        self._packages = packages  # its own: global_ looks into them
        # What movable objects that were passed to it build on.
        self._other_packages: tuple[Shared, ...] = ()
        with contextlib.ExitStack() as lent:
            interpreter = lent.enter_context(lender.least_used())
            self._interpreter: LibraryInterpreter | None = interpreter
            if origin is not None:
                interpreter.bring(origin)
            self._generation = interpreter.channel.generation
            self.self = self.keep("get", target=origin and Ref(origin.number))
            self._give_back = lent.pop_all().close

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
        data, (arena_fd,) = self.ask("pickle", fields)
        arena = SealedFile.adopt(arena_fd)  # whoever wrote it has sealed it

        def copy_in(interpreter: LibraryInterpreter, number: int) -> None:
            given = {"data": data, "packages": numbers}
            interpreter.ask("unpickle", given, number, (arena.fd,))

        return MovableObject(Shared(self._lender, packages, copy_in, arena))

    def close(self) -> None:
        """Ends the session; idempotent."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is None:
            return
        try:
            if interpreter.channel.generation == self._generation:
                interpreter.ask("drop", {"numbers": self._numbers, "give_back": False})
        except ServingError:
            return  # the interpreter is gone, and the session with it
        finally:
            self._give_back()

    # -- for RemoteObject --------------------------------------------------------------

    def ask(
        self, op: str, fields: Mapping[str, object], into: int | None = None
    ) -> tuple[object, list[int]]:
        """Sends a request whose fields may refer to objects; as the interpreter's."""
        return self._lent().ask(op, fields, into, number_of=self._number_of)

    def keep(self, op: str, **fields: object) -> RemoteObject:
        """As ``ask``, but the outcome stays there, as an object of this session."""
        number = next(self._lender.numbers)
        self.ask(op, fields, number)
        self._numbers.append(number)
        return RemoteObject(self, number)

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
        shared = obj.shared
        if shared.lender is not self._lender:
            raise InvalidArgument("this object belongs to another InterpreterManager")
        self._lent().bring(shared)
        known = {*self._packages, *self._other_packages}
        self._other_packages += tuple(
            each for each in shared.packages if each not in known
        )
        return shared.number

    def _lent(self) -> LibraryInterpreter:
        if self._interpreter is None:
            raise FailedPrecondition("this session has ended, and its values with it")
        if self._interpreter.channel.generation != self._generation:
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
        return self.session.ask("get", {"target": self})[0]
