"""One interpreter for use by the library: what was made there, and requests to it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.runtime.guest.sessions.value_codec import decode, encode
from tfs.runtime.session_channel import DirectChannel, SessionChannel


class Materialised(Protocol):
    """A package or object that an interpreter gets at its first use there."""

    @property
    def number(self) -> int:
        """A number that is unique within the manager."""
        ...

    @property
    def packages(self) -> Sequence[Materialised]:
        """What must be there before."""
        ...

    def materialising(self) -> tuple[str, dict[str, object], tuple[int, ...]]:
        """Returns the request that makes it: operation, fields and descriptors."""
        ...


class SessionInterpreter:
    """An interpreter and what was materialised there. Thread-safe.

    Attributes:
        channel: Leads to the interpreter.
        num_users: How often it is lent now; written by the lender.

    """

    def __init__(self, channel: SessionChannel) -> None:
        self.channel = channel
        self._direct = channel if isinstance(channel, DirectChannel) else None
        self.num_users = 0
        self._pid = os.getpid()
        # Guards the fields below and makes materialising happen once. Held during an
        # exchange with the interpreter; rank: before the manager's lock.
        self._lock = threading.Lock()
        self._generation = -1
        self._present: set[int] = set()
        self._held = False
        # Of things that nobody refers to any more: filled wherever garbage is found.
        self._garbage: deque[tuple[str, int]] = deque()

    @property
    def load(self) -> int:
        """How busy it is: its users, or calls that somebody gave up waiting for."""
        return max(self.num_users, self.channel.num_unanswered)

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left here is gone."""
        return self.channel.generation

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made in this process, and not in one that this is a fork of."""
        return self.channel.survives_fork or os.getpid() == self._pid

    def check_process(self) -> None:
        """Refuses use in a fork, where nobody would answer.

        Raises:
            FailedPrecondition: This process is a fork.

        """
        if not self.is_of_this_process:
            raise FailedPrecondition(
                "this InterpreterManager belongs to the process it was made in, of "
                "which this one is a fork: make one here"
            )

    def make_ready(self) -> None:
        """Starts the interpreter at its first use."""
        with self._lock:
            if not self._held:
                self.channel.hold()
                self._held = True

    def materialise(self, thing: Materialised) -> None:
        """Makes sure that the interpreter has ``thing``, and what it builds on."""
        for package in thing.packages:
            self.materialise(package)
        with self._lock:
            if self.channel.generation != self._generation:
                self._present.clear()  # in a new process everything has to be made anew
                self._generation = self.channel.generation
            if thing.number in self._present:
                return
            op, fields, fds = thing.materialising()
            self._exchange(op, fields, fds)
            self._present.add(thing.number)

    def ask(self, op: str, **fields: object) -> object:
        """Sends one request; returns the reply's value."""
        return self._exchange(op, fields, ())[0]

    def run(
        self, movable: int, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Calls a materialised object; returns its value."""
        if self._direct is not None:
            return self._direct.run(movable, args, kwargs)
        return self.ask("run", movable=movable, args=args, kwargs=kwargs)

    def ask_for_fd(self, op: str, **fields: object) -> tuple[object, int]:
        """Sends one request whose reply carries a descriptor, which the caller owns."""
        value, fds = self._exchange(op, fields, ())
        return value, fds[0]

    def forget(self, op: str, key: str, number: int) -> None:
        """Drops a thing if it is here."""
        with self._lock:
            if number not in self._present:
                return
            self._present.discard(number)
        try:
            self.ask(op, **{key: number})
        except ServingError:
            return  # the interpreter is gone, and the thing with it

    def discard(self, key: str, number: int) -> None:
        """Lets the next ``sweep`` drop a thing; takes no lock."""
        self._garbage.append((key, number))

    def sweep(self) -> None:
        """Drops what was discarded, if it is here. Rarely has to block."""
        if not self._garbage:
            return
        numbers: dict[str, list[int]] = {"movable": [], "package": []}
        while self._garbage:
            try:
                key, number = self._garbage.popleft()
            except IndexError:
                break  # another thread took the last one
            numbers[key].append(number)
        with self._lock:
            if self.channel.generation != self._generation:
                return  # the thing is gone already
            for key, those in numbers.items():
                numbers[key] = [each for each in those if each in self._present]
                self._present.difference_update(those)
        if any(numbers.values()):
            try:
                self.ask(
                    "discard", movables=numbers["movable"], packages=numbers["package"]
                )
            except ServingError:
                return  # the interpreter is gone, and the things with it

    def _exchange(
        self, op: str, fields: Mapping[str, object], fds: tuple[int, ...]
    ) -> tuple[object, list[int]]:
        self.check_process()
        reply, reply_fds = self.channel.exchange(encode({"op": op, **fields}), fds)
        return decode(reply), reply_fds
