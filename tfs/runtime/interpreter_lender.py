"""Lends the interpreters of a manager, and knows how often each is lent."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from tfs.core.errors import Unavailable
from tfs.runtime.guest.sealed_file import SealedFile
from tfs.runtime.session_channel import SessionChannel
from tfs.runtime.session_interpreter import SessionInterpreter


class InterpreterLender:
    """Lends interpreters, the least used first. Thread-safe.

    It belongs to the process in which it was made.

    Args:
        channels: The channel of each interpreter; at least one.

    """

    def __init__(self, channels: Sequence[SessionChannel]) -> None:
        self._interpreters = [SessionInterpreter(channel) for channel in channels]
        self._ids = itertools.count(1)
        self._closed = False
        self._files = weakref.WeakSet[SealedFile]()
        # Guards num_users of every interpreter; leaf lock.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of interpreters."""
        return len(self._interpreters)

    def next_id(self) -> int:
        """Returns a number that is not used otherwise."""
        return next(self._ids)

    def own(self, file: SealedFile) -> SealedFile:
        """Returns ``file``; it is closed with the interpreters, if not before."""
        self._files.add(file)
        return file

    @contextmanager
    def least_used(self) -> Iterator[SessionInterpreter]:
        """Lends an interpreter, counted while it is lent."""
        interpreter = self.take()
        try:
            yield interpreter
        finally:
            self.give_back(interpreter)

    def take(self) -> SessionInterpreter:
        """Returns the least used interpreter, and counts one more use of it.

        Raises:
            Unavailable: They are closed.
            FailedPrecondition: This process is a fork.

        """
        self.check_open()
        with self._lock:
            interpreter = min(self._interpreters, key=lambda each: each.load)
            interpreter.num_users += 1
            idle = [each for each in self._interpreters if not each.load]
        try:
            interpreter.make_ready()
            for each in (interpreter, *idle):
                each.sweep()
        except BaseException:
            self.give_back(interpreter)
            raise
        return interpreter

    def give_back(self, interpreter: SessionInterpreter) -> None:
        """Takes one use off an interpreter's count."""
        with self._lock:
            interpreter.num_users -= 1

    def forget(self, op: str, key: str, number: int) -> None:
        """Drops something everywhere it was materialised; never raises."""
        if self._closed:
            return
        for interpreter in self._interpreters:
            interpreter.forget(op, key, number)

    def discard(self, key: str, number: int) -> None:
        """Notes that a thing that nobody refers to any more should be dropped later.

        It does nothing else, because Python may call it at any place and under any
        lock.

        Args:
            key: "package" or "movable".
            number: The number of the thing.

        """
        if not self._closed:
            for interpreter in self._interpreters:
                interpreter.discard(key, number)

    def check_open(self) -> None:
        """Refuses use if nobody would answer.

        Raises:
            Unavailable: They are closed.
            FailedPrecondition: This process is a fork.

        """
        if self._closed:
            raise Unavailable("this InterpreterManager is closed")
        self._interpreters[0].check_process()

    def close(self) -> bool:
        """Stops lending; returns, once, whether the caller has to end the interpreters.

        A fork must not end them: they belong to the process in which they were made.
        """
        was_closed, self._closed = self._closed, True
        return not was_closed and self._interpreters[0].is_of_this_process

    def let_go(self) -> None:
        """Takes back the holds that keep the interpreters ready."""
        for interpreter in self._interpreters:
            interpreter.channel.let_go()

    def close_files(self) -> None:
        """Frees the memory of everything that was loaded. The interpreters have ended."""
        for file in list(self._files):
            file.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an InterpreterManager, its packages and objects stay in their process: "
            "make one in the other process, and load the package there"
        )
