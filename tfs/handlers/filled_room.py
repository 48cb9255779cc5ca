"""Bounds the memory that requests take beyond what was sent.

One value can stand for all elements of a tensor, numbers of a byte become eight,
padding and defaults are added, and an unusual message is copied: so a request of forty
bytes may take as much memory as the codec allows for any. This limits what all requests
take together. Where there is no room they wait, the longest waiting first; they are
read again then. Rejected: to refuse them. Whoever sends a million small numbers does
nothing wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_FILLED_BYTES: Final = 32 << 20
"""What requests in flight may take together beyond what was sent of them; one may take
more while no other takes any."""

# Requests up to this size are not counted. Ten thousand of them take 160 MB.
_UNCOUNTED_BYTES: Final = 1 << 14


class NoRoomError(Exception):
    """A request has to wait for room; it has taken none.

    Attributes:
        room: The request's, to wait with.

    """

    def __init__(self, room: FilledRoom) -> None:
        super().__init__("no room for what was not sent")
        self.room = room


class FillLimit:
    """Counts the memory taken in this way on a server. Thread-safe.

    Args:
        max_bytes: How much there is.

    """

    def __init__(self, max_bytes: int) -> None:
        # Guards what follows; leaf: nothing is called under it.
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes
        self._waiting: deque[Callable[[], None]] = deque()  # the longest waiting first

    def take(self, num_bytes: int, held_bytes: int = 0, *, has_waited: bool) -> bool:
        """Takes room; the caller owes ``give_back``.

        Args:
            num_bytes: How much.
            held_bytes: What the same request has taken before.
            has_waited: Whether it is its turn; if not, those who wait go first.

        Returns:
            Whether it was taken. It is, however much, if nobody else has any.

        """
        with self._lock:
            if self._waiting and not has_waited:
                return False
            is_alone = self._free_bytes + held_bytes >= self._max_bytes
            if num_bytes > self._free_bytes and not is_alone:
                return False
            self._free_bytes -= num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """Gives room back."""
        with self._lock:
            self._free_bytes += num_bytes
        self.wake()

    def wake(self) -> None:
        """Has who waits longest try again."""
        with self._lock:
            retry = self._waiting.popleft() if self._waiting else None
        if retry is not None:
            retry()

    def wait(self, retry: Callable[[], None], *, has_waited: bool) -> None:
        """Has ``retry`` run once room was given back; at once if all of it was."""
        with self._lock:
            is_full = self._free_bytes < self._max_bytes
            if is_full and has_waited:
                self._waiting.appendleft(retry)
            elif is_full:
                self._waiting.append(retry)
        if not is_full:
            retry()


class FilledRoom:
    """What one request has taken. Passed from thread to thread with its request."""

    __slots__ = ("_has_waited", "_limit", "_num_bytes")

    def __init__(self, limit: FillLimit) -> None:
        self._limit = limit
        self._num_bytes = 0
        self._has_waited = False

    def take(self, num_bytes: int) -> None:
        """Takes room for so many bytes, what it has included.

        Raises:
            NoRoomError: There is none now; what it had is given back.

        """
        if num_bytes < max(_UNCOUNTED_BYTES, self._num_bytes + 1):
            return
        if not self._limit.take(
            num_bytes - self._num_bytes, self._num_bytes, has_waited=self._has_waited
        ):
            self.leave()
            raise NoRoomError(self)
        self._num_bytes = num_bytes

    def wait(self, retry: Callable[[], None]) -> None:
        """Has ``retry`` run when it is time to ask again; it owes a :meth:`pass_on`."""
        has_waited, self._has_waited = self._has_waited, True
        self._limit.wait(retry, has_waited=has_waited)

    def pass_on(self) -> None:
        """Lets the next one try that waits, after this one did and need not any more."""
        self._limit.wake()

    def leave(self) -> None:
        """Gives back what was taken; idempotent."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num_bytes:
            self._limit.give_back(num_bytes)
