"""Lends the interpreters of a manager, the least used first."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import NoReturn, Protocol

from tfs.core.errors import FailedPrecondition, Internal, ServingError, Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.guest.memory_files import SealedFile
from tfs.runtime.guest.sessions.value_codec import decode, encode
from tfs.runtime.interpreter import closed
from tfs.runtime.process.process_model import on_loop
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import Worker, WorkerState
from tfs.runtime.process.worker_process import WorkerReply

_START_S = 600.0  # for the fork of a process, and the imports there


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

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the interpreter's ``SessionGuest`` answer a request. Blocks.

        The first request makes the interpreter, which stays until it is closed. Returns
        the reply, and descriptors that the caller closes.

        Raises:
            ServingError: The guest's error; or the interpreter died over the request,
                or cannot be made.

        """
        ...

    def close(self, deadline_s: float) -> None:
        """Ends the interpreter by ``deadline_s`` (monotonic); idempotent. Blocks."""
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
        self.number = next(lender.numbers)
        self.packages = packages
        self.make = make
        weakref.finalize(self, lender.drop_later, self.number).atexit = False
        if file is not None:
            lender.files.add(file)
            weakref.finalize(self, file.close)


class LibraryInterpreter:
    """An interpreter and what was made there. Thread-safe.

    Attributes:
        channel: Leads there.
        num_users: How often it is lent now; written by the lender.
        garbage: Numbers of what nobody refers to any more; filled wherever garbage is
            found.

    """

    def __init__(self, channel: SessionChannel) -> None:
        self.channel = channel
        self.num_users = 0
        self.garbage: deque[int] = deque()
        self._pid = os.getpid()
        # Guards the two fields below, and makes things happen once. Held during an
        # exchange with the interpreter; rank: before the lock of its channel.
        self._lock = threading.Lock()
        self._generation = -1
        self._present: set[int] = set()

    @property
    def load(self) -> int:
        """How busy it is: its users, or calls that somebody gave up waiting for."""
        return max(self.num_users, self.channel.num_unanswered)

    def check_process(self) -> None:
        """Raises FailedPrecondition in a fork, where nobody would answer."""
        if os.getpid() != self._pid:
            raise FailedPrecondition(
                "this InterpreterManager belongs to the process it was made in, of "
                "which this one is a fork: make one here"
            )

    def bring(self, thing: Shared) -> None:
        """Makes sure that the interpreter has ``thing``, and what it builds on."""
        for package in thing.packages:
            self.bring(package)
        with self._lock:
            if self.channel.generation != self._generation:
                self._present.clear()  # in a new process everything has to be made anew
                self._generation = self.channel.generation
            if thing.number not in self._present:
                thing.make(self, thing.number)
                self._present.add(thing.number)

    def drop(self, numbers: Sequence[int]) -> None:
        """Drops packages and movable objects, if they are here; never raises."""
        with self._lock:
            if self.channel.generation != self._generation:
                return
            here = [number for number in numbers if number in self._present]
            self._present.difference_update(here)
        if here:
            with contextlib.suppress(ServingError):  # it is gone, and they with it
                self.ask("drop", {"numbers": here, "give_back": True})

    def drop_garbage(self) -> None:
        """Drops what nobody refers to any more."""
        numbers = []
        with contextlib.suppress(IndexError):
            while True:
                numbers.append(self.garbage.popleft())
        self.drop(numbers)

    def ask(
        self,
        op: str,
        fields: Mapping[str, object],
        into: int | None = None,
        fds: tuple[int, ...] = (),
        number_of: Callable[[object], int | None] = lambda _object: None,
    ) -> tuple[object, list[int]]:
        """Sends one request; returns the reply's value, and its descriptors. Blocks.

        Args:
            op: An operation of ``SessionGuest``.
            fields: The operation's arguments.
            into: Keeps the outcome there under this number, instead of returning it.
            fds: Descriptors that go along.
            number_of: Returns the number of an object among the fields; None for what
                is passed by value.

        """
        self.check_process()
        reply, reply_fds = self.channel.exchange(
            encode((op, into, fields), number_of), fds
        )
        return decode(reply), reply_fds


class InterpreterLender:
    """Lends interpreters, and owns the memory of what was loaded. Thread-safe.

    Args:
        channels: The channel of each interpreter; at least one.

    Attributes:
        interpreters: The interpreters.
        numbers: Gives each object a number that no other one has.
        files: The memory of what was loaded, until it is closed.

    """

    def __init__(self, channels: Sequence[SessionChannel]) -> None:
        self.interpreters = [LibraryInterpreter(channel) for channel in channels]
        self.numbers = itertools.count(1)
        self.files = weakref.WeakSet[SealedFile]()
        self._is_closed = False
        # Guards num_users of every interpreter; leaf lock.
        self._lock = threading.Lock()
        # Once for each end of a use; filled wherever garbage is found.
        self._given_back: deque[LibraryInterpreter] = deque()

    @contextlib.contextmanager
    def least_used(self) -> Iterator[LibraryInterpreter]:
        """Lends the least used interpreter for a block.

        Raises:
            Unavailable: They are closed.
            FailedPrecondition: This process is a fork.

        """
        self.check_open()
        with self._lock:
            with suppress(IndexError):
                while True:
                    self._given_back.popleft().num_users -= 1
            interpreter = min(self.interpreters, key=lambda each: each.load)
            interpreter.num_users += 1
        try:
            interpreter.drop_garbage()
            yield interpreter
        finally:
            # Takes no lock: the block may be a session's that the collector ends.
            self._given_back.append(interpreter)

    def drop(self, number: int) -> None:
        """Drops something wherever it was made; never raises."""
        if not self._is_closed:
            for interpreter in self.interpreters:
                interpreter.drop([number])

    def drop_later(self, number: int) -> None:
        """Has each interpreter drop something when it is next lent.

        Takes no lock, because Python may call it anywhere.
        """
        for interpreter in self.interpreters:
            interpreter.garbage.append(number)

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
        try:
            self.check_open()
        except ServingError:
            return False
        finally:
            self._is_closed = True
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an InterpreterManager, its packages and objects stay in their process: "
            "make one in the other process, and load the package there"
        )


class ProcessChannel:
    """A worker whose guest answers sessions. Thread-safe; all but properties blocks.

    Implements :class:`~tfs.runtime.library.interpreters.SessionChannel`.

    Args:
        loop: Watches the worker.
        options: Say how long a request may take.
        worker: The worker; closed with this.

    """

    def __init__(
        self, loop: ServingLoop, options: ProcessOptions, worker: Worker
    ) -> None:
        self._loop = loop
        self._timeout_s = options.load_timeout_s
        self._worker = worker

    @property
    def num_unanswered(self) -> int:
        """Requests that the worker has not answered yet."""
        process = self._worker.process
        return 0 if process is None else process.num_awaited

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the worker is gone."""
        return self._worker.num_deaths

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the worker's session guest answer a request.

        Returns:
            The reply, and descriptors that the caller closes.

        Raises:
            ServingError: The error that the guest returned; or Internal if the worker
                died over the request, and with it everything that the session held.

        """
        if self._worker.state is WorkerState.CLOSED:
            raise closed(self._worker.name)

        is_late = False

        def begin(answer: Future[tuple[bytes, list[int]]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                if reply is None:
                    text = f"the interpreter of this session {self._worker.last_end}"
                    gone = Internal(f"{text}; what it held is gone, begin anew")
                    answer.set_exception(gone)
                elif (error := reply.error()) is not None:
                    answer.set_exception(error)
                else:
                    taken, reply.fds = reply.fds, []
                    answer.set_result((reply.payload, taken))

            def on_ready(error: ServingError | None) -> None:
                if error is not None:
                    answer.set_exception(error)
                elif is_late:
                    return  # the caller's descriptors are others' by now
                elif (process := self._worker.live) is not None:
                    fields = {"body": request}
                    process.send("session", fields, fds, on_reply, background=False)

            self._worker.want(on_ready)

        late = Internal(
            f"interpreter {self._worker.name} did not answer a session within "
            f"{self._timeout_s:.0f} s; allow its calls more time (load_timeout_s), or "
            "begin a session anew"
        )
        try:
            if self._worker.state is not WorkerState.READY:
                # To fork it, and to import torch there, is no part of the call's time.
                start_s = max(_START_S, self._timeout_s)
                self._worker.ready().result(min(start_s, threading.TIMEOUT_MAX))
            return on_loop(self._loop, begin, self._timeout_s, late)
        except TimeoutError:
            raise late from None
        finally:
            is_late = True

    def close(self, deadline_s: float) -> None:
        """Ends the worker, and whatever it is doing; may be repeated."""
        if self._worker.state is WorkerState.CLOSED:
            return

        def begin(is_closed: Future[None]) -> None:
            self._worker.close()
            with suppress(InvalidStateError):
                is_closed.set_result(None)

        late = Internal(f"interpreter {self._worker.name} does not close")
        timeout_s = max(0.0, deadline_s - self._loop.clock.now())
        on_loop(self._loop, begin, timeout_s, late)
