"""Lends the interpreters of a manager, the least used first."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from tfs.core.errors import FailedPrecondition, ServingError, Unavailable
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.guest.sessions.value_codec import decode, encode


class SessionChannel(Protocol):
    """One interpreter of a backend, as sessions use it. Thread-safe.

    Implementors promise: requests are answered one at a time; what they leave in the
    interpreter stays while ``generation`` is the same.
    """

    @property
    def num_unanswered(self) -> int:
        """Requests that were sent and not answered, even if nobody waits for them."""
        ...

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the interpreter is gone."""
        ...

    def hold(self) -> None:
        """Makes the interpreter ready, and keeps it so until it is closed. Blocks."""
        ...

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the interpreter's ``SessionGuest`` answer a request. Blocks.

        Returns the reply, and descriptors that the caller closes.

        Raises:
            ServingError: The guest's error; or the interpreter died over the request.

        """
        ...


class Shared:
    """A package or movable object, which an interpreter makes at its first use there.

    Thread-safe. It is dropped everywhere when nobody refers to it any more.

    Args:
        lender: Lends the interpreters.
        packages: The packages that must be there before.
        make: Sends the request that makes it, under a number.
        file: Its bytes, closed with it.

    """

    def __init__(
        self,
        lender: InterpreterLender,
        packages: tuple[Shared, ...],
        make: Callable[[LibraryInterpreter, int], None],
        file: SealedFile | None = None,
    ) -> None:
        self.lender = lender
        self.number = lender.new_number()
        self.packages = packages
        self.make = make
        weakref.finalize(self, lender.drop_later, self.number).atexit = False
        if file is not None:
            lender.own(file)
            weakref.finalize(self, file.close)


class LibraryInterpreter:
    """An interpreter and what was made there. Thread-safe.

    Attributes:
        num_users: How often it is lent now; written by the lender.

    """

    def __init__(self, channel: SessionChannel) -> None:
        self.num_users = 0
        self._channel = channel
        self._pid = os.getpid()
        # Guards the three fields below, and makes things happen once. Held during an
        # exchange with the interpreter; rank: before the lock of its channel.
        self._lock = threading.Lock()
        self._generation = -1
        self._present: set[int] = set()
        self._is_held = False
        # Numbers of what nobody refers to any more; filled wherever garbage is found.
        self._garbage: deque[int] = deque()

    @property
    def load(self) -> int:
        """How busy it is: its users, or calls that somebody gave up waiting for."""
        return max(self.num_users, self._channel.num_unanswered)

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left here is gone."""
        return self._channel.generation

    def check_process(self) -> None:
        """Raises FailedPrecondition in a fork, where nobody would answer."""
        if os.getpid() != self._pid:
            raise FailedPrecondition(
                "this InterpreterManager belongs to the process it was made in, of "
                "which this one is a fork: make one here"
            )

    def make_ready(self) -> None:
        """Starts it at its first use, and drops what nobody refers to any more."""
        with self._lock:
            if not self._is_held:
                self._channel.hold()
                self._is_held = True
        numbers = []
        with contextlib.suppress(IndexError):
            while True:
                numbers.append(self._garbage.popleft())
        self.drop(numbers)

    def bring(self, thing: Shared) -> None:
        """Makes sure that the interpreter has ``thing``, and what it builds on."""
        for package in thing.packages:
            self.bring(package)
        with self._lock:
            if self._channel.generation != self._generation:
                self._present.clear()  # in a new process everything has to be made anew
                self._generation = self._channel.generation
            if thing.number not in self._present:
                thing.make(self, thing.number)
                self._present.add(thing.number)

    def drop(self, numbers: Sequence[int]) -> None:
        """Drops packages and movable objects, if they are here; never raises."""
        with self._lock:
            if self._channel.generation != self._generation:
                return
            here = [number for number in numbers if number in self._present]
            self._present.difference_update(here)
        if here:
            with contextlib.suppress(ServingError):  # it is gone, and they with it
                self.ask("drop", numbers=here, give_back=True)

    def drop_later(self, number: int) -> None:
        """Has the next user drop a thing; takes no lock, as Python may call it anywhere."""
        self._garbage.append(number)

    def ask(
        self,
        op: str,
        into: int | None = None,
        fds: tuple[int, ...] = (),
        **fields: object,
    ) -> object:
        """Sends one request; returns the reply's value. Blocks.

        Args:
            op: An operation of ``SessionGuest``.
            into: Keeps the outcome there under this number, instead of returning it.
            fds: Descriptors that go along.
            fields: The operation's arguments.

        """
        return self.exchange(op, into, fields, fds)[0]

    def exchange(
        self,
        op: str,
        into: int | None,
        fields: Mapping[str, object],
        fds: tuple[int, ...] = (),
        number_of: Callable[[object], int | None] = lambda _object: None,
    ) -> tuple[object, list[int]]:
        """As ``ask``; also returns descriptors, which the caller owns.

        Args:
            op: As for ``ask``.
            into: As for ``ask``.
            fields: As for ``ask``.
            fds: As for ``ask``.
            number_of: Returns the number of an object among the fields; None for what
                is passed by value.

        """
        self.check_process()
        request = encode((op, into, fields), number_of)
        reply, reply_fds = self._channel.exchange(request, fds)
        return decode(reply), reply_fds


class InterpreterLender:
    """Lends interpreters, and owns the memory of what was loaded. Thread-safe.

    Args:
        channels: The channel of each interpreter; at least one.

    """

    def __init__(self, channels: Sequence[SessionChannel]) -> None:
        self.interpreters = [LibraryInterpreter(channel) for channel in channels]
        self._numbers = itertools.count(1)
        self._files = weakref.WeakSet[SealedFile]()
        self._is_closed = False
        # Guards num_users of every interpreter; leaf lock.
        self._lock = threading.Lock()

    def new_number(self) -> int:
        """Returns a number that no other object has."""
        return next(self._numbers)

    def own(self, file: SealedFile) -> None:
        """Has ``close_files`` close a file, if nobody does before."""
        self._files.add(file)

    @contextlib.contextmanager
    def least_used(self) -> Iterator[LibraryInterpreter]:
        """Lends an interpreter for a block; see :meth:`take`."""
        interpreter = self.take()
        try:
            yield interpreter
        finally:
            self.give_back(interpreter)

    def take(self) -> LibraryInterpreter:
        """Returns the least used interpreter, and counts one more use of it.

        Raises:
            Unavailable: They are closed.
            FailedPrecondition: This process is a fork.

        """
        self.check_open()
        with self._lock:
            interpreter = min(self.interpreters, key=lambda each: each.load)
            interpreter.num_users += 1
        try:
            interpreter.make_ready()
        except BaseException:
            self.give_back(interpreter)
            raise
        return interpreter

    def give_back(self, interpreter: LibraryInterpreter) -> None:
        """Takes one use off an interpreter's count."""
        with self._lock:
            interpreter.num_users -= 1

    def drop(self, number: int) -> None:
        """Drops something wherever it was made; never raises."""
        if not self._is_closed:
            for interpreter in self.interpreters:
                interpreter.drop([number])

    def drop_later(self, number: int) -> None:
        """Drops something where it was made when an interpreter is next lent."""
        for interpreter in self.interpreters:
            interpreter.drop_later(number)

    def check_open(self) -> None:
        """Refuses use if nobody would answer.

        Raises:
            Unavailable: They are closed.
            FailedPrecondition: This process is a fork.

        """
        if self._is_closed:
            raise Unavailable("this InterpreterManager is closed")
        self.interpreters[0].check_process()

    def close(self) -> bool:
        """Stops lending; returns, once, whether the caller has to end the interpreters.

        A fork must not end them: they belong to the process in which they were made.
        """
        was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return False
        try:
            self.interpreters[0].check_process()
        except FailedPrecondition:
            return False
        return True

    def close_files(self) -> None:
        """Frees the memory of everything that was loaded. The interpreters have ended."""
        for file in list(self._files):
            file.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an InterpreterManager, its packages and objects stay in their process: "
            "make one in the other process, and load the package there"
        )
