"""How a session reaches its interpreter, whatever the backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from tfs.runtime.guest.sessions.session_guest import SessionGuest


class SessionChannel(Protocol):
    """One interpreter, as sessions use it. Thread-safe.

    Implementors promise: requests are answered one at a time; what they leave in the
    interpreter stays while ``generation`` is the same.
    """

    @property
    def name(self) -> str:
        """The interpreter's name, for messages."""
        ...

    @property
    def num_unanswered(self) -> int:
        """Requests that were sent and not answered, even if nobody waits for them."""
        ...

    @property
    def survives_fork(self) -> bool:
        """Whether it can be used in a fork of the process in which it was made."""
        ...

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the interpreter is gone."""
        ...

    def hold(self) -> None:
        """Makes the interpreter ready and keeps it so until ``let_go``. Blocks."""
        ...

    def let_go(self) -> None:
        """Takes a ``hold`` back."""
        ...

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Answers a request of :class:`SessionGuest`. Blocks.

        Raises:
            ServingError: The guest's error; or the interpreter died over the request.

        """
        ...


@runtime_checkable
class DirectChannel(SessionChannel, Protocol):
    """A channel that can call a movable object without encoding anything."""

    def run(
        self, movable: int, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Calls an object that was materialised there; returns the value. Blocks.

        Raises:
            ServingError: The call failed.

        """
        ...


class InlineSessionChannel:
    """Sessions in this process, on the caller's thread. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Held while the guest works, user code included: one request at a time is
        # what a session channel promises. Rank: none may be taken under it but those
        # of user code.
        self._lock = threading.Lock()
        self._guest = SessionGuest(is_interrupted=True)

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_unanswered(self) -> int:
        return 0  # a caller that gives up ends the call as well

    @property
    def survives_fork(self) -> bool:
        return True

    @property
    def generation(self) -> int:
        return 0

    def hold(self) -> None:
        """Does nothing: the process is there."""

    def let_go(self) -> None:
        """Drops what sessions left here."""
        with self._lock:
            self._guest.close()
            self._guest = SessionGuest(is_interrupted=True)

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        own = [os.dup(fd) for fd in fds]
        try:
            with self._lock:
                return self._guest.handle(request, own)
        finally:
            for fd in own:
                os.close(fd)
