"""Bounds the memory that requests take beyond the bytes that were sent for them.

One value can stand for all elements of a tensor, a number of one byte becomes eight
bytes, padding and defaults are added, and an unusual message is copied. So a request of
forty bytes may take as much memory as the codec allows for any request. This limits
what all requests take together. Requests for which there is no room wait, the longest
waiting first, and are decoded again when there is. Rejected: refusing them, because a
client that sends a million small numbers does nothing wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_FILLED_BYTES: Final = 32 << 20
"""Bytes that requests in flight may take together beyond what was sent for them. One
request may take more while no other takes any."""

# Requests up to this size are not counted. Ten thousand of them take 160 MB.
_UNCOUNTED_BYTES: Final = 1 << 14


class NoRoomError(Exception):
    """A request has to wait for room; it has taken none.

    Attributes:
        room: The request's room, with which it can wait.

    """

    def __init__(self, room: FilledRoom) -> None:
        super().__init__("no room for what was not sent")
        self.room = room


class UnaskedError(Exception):
    """A request is to take more than its call was asked for; it has taken none.

    Attributes:
        room: The request's room.
        num_bytes: What the call has to be asked for.

    """

    def __init__(self, room: FilledRoom, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes that the call was not asked for")
        self.room = room
        self.num_bytes = num_bytes


class FillLimit:
    """Counts the memory taken in this way on a server. Thread-safe.

    Args:
        max_bytes: How many bytes requests may take together.

    """

    def __init__(self, max_bytes: int) -> None:
        # Guards what follows; leaf: nothing is called under it.
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes
        self._waiting: deque[Callable[[], None]] = deque()  # the longest waiting first

    def take(self, num_bytes: int, held_bytes: int = 0, *, has_waited: bool) -> bool:
        """Takes room, if there is any; the caller then owes ``give_back``.

        Args:
            num_bytes: How many bytes.
            held_bytes: How many bytes the same request has taken before.
            has_waited: Whether it is this request's turn. If not, those that wait go
                first.

        Returns:
            Whether it was taken. It always is if no other request has any room.

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
        """Lets the request that has waited longest try again."""
        with self._lock:
            retry = self._waiting.popleft() if self._waiting else None
        if retry is not None:
            retry()

    def wait(self, retry: Callable[[], None], *, has_waited: bool) -> None:
        """Runs ``retry`` once room is given back; at once if no room is taken."""
        with self._lock:
            is_full = self._free_bytes < self._max_bytes
            if is_full and has_waited:
                self._waiting.appendleft(retry)
            elif is_full:
                self._waiting.append(retry)
        if not is_full:
            retry()


class FilledRoom:
    """The room that one request has taken. Goes from thread to thread with it.

    Attributes:
        asked_bytes: How much its call was asked for, which is the most that it takes;
            None if calls are not asked.

    """

    __slots__ = ("_has_waited", "_limit", "_num_bytes", "asked_bytes")

    def __init__(self, limit: FillLimit, asked_bytes: int | None = None) -> None:
        self.asked_bytes = asked_bytes
        self._limit = limit
        self._num_bytes = 0
        self._has_waited = False

    def take(self, num_bytes: int) -> None:
        """Takes room until the request has so many bytes in all.

        Raises:
            NoRoomError: There is no room now; what the request had is given back.
            UnaskedError: The same, and its call has to be asked first.

        """
        if num_bytes < max(_UNCOUNTED_BYTES, self._num_bytes + 1):
            return
        asked_bytes = self.asked_bytes
        if asked_bytes is not None and num_bytes > asked_bytes:
            self.leave()
            # A request with many inputs that grow is read again a few times only.
            raise UnaskedError(self, max(num_bytes, 2 * asked_bytes))
        if not self._limit.take(
            num_bytes - self._num_bytes, self._num_bytes, has_waited=self._has_waited
        ):
            self.leave()
            raise NoRoomError(self)
        self._num_bytes = num_bytes

    def wait(self, retry: Callable[[], None]) -> None:
        """Runs ``retry`` when it is time to ask again, which owes a :meth:`pass_on`."""
        has_waited, self._has_waited = self._has_waited, True
        self._limit.wait(retry, has_waited=has_waited)

    def pass_on(self) -> None:
        """Lets the next waiting request try, as this one need not wait any more."""
        self._limit.wake()

    def leave(self) -> None:
        """Gives back what was taken; idempotent."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num_bytes:
            self._limit.give_back(num_bytes)
