"""Reads the later messages of streams, a few at a time.

A client that streams may send its next message whenever it likes, or never. While we
wait for it, grpcio lets the client send all of it, however long it is. So only a few
streams wait at a time. One that waits keeps its turn until others want it: after a
second it ends then, as if its client had said that it sends no more. Clients that ask
services for their descriptions open another stream for the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

_Turn: TypeAlias = asyncio.Future[asyncio.Future[None]]

_PLACES: Final = 2
# Messages that were sent before their turn are there at once.
_LEAST_S: Final = 1.0


class StreamTurns:
    """Decides which streams may have a message read. Confined to grpcio's thread.

    Args:
        now: The time in seconds.
        is_open_to: Tells whether a client may have more answers; call :meth:`go_on`
            when that changes.

    """

    def __init__(
        self, now: Callable[[], float], is_open_to: Callable[[str], bool]
    ) -> None:
        self._now = now
        self._is_open_to = is_open_to
        # Since when each stream has had its turn, the oldest first.
        self._reading: dict[asyncio.Future[None], float] = {}
        self._waiting: list[tuple[str, _Turn]] = []  # the longest waiting first

    @property
    def num_waiting(self) -> int:
        """Streams that wait for a turn."""
        return len(self._waiting)

    async def read(
        self, peer: str, read: Callable[[], Awaitable[object]]
    ) -> bytes | None:
        """Returns the next message of a stream.

        Args:
            peer: The client.
            read: Reads the message.

        Returns:
            None if the client sends no more, or others want the turn.

        """
        over = await self._take(peer)
        reading = asyncio.ensure_future(read())
        try:
            either: set[asyncio.Future[Any]] = {reading, over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return None
            message = reading.result()
        finally:
            reading.cancel()
            self._end(over)
        return message if isinstance(message, bytes) else None  # its end-of-stream mark

    def go_on(self) -> None:
        """Lets streams be read that waited and may have a turn now."""
        for entry in self._waiting[:]:
            if len(self._reading) >= _PLACES:
                return
            peer, turn = entry
            if self._is_open_to(peer):
                self._waiting.remove(entry)
                if not turn.done():  # its call was not cancelled
                    turn.set_result(self._begin())

    def look(self) -> None:
        """Ends turns that others want; to be called a few times a second."""
        latest_s = self._now() - _LEAST_S
        num_wanted = sum(self._is_open_to(peer) for peer, _ in self._waiting)
        for over, since_s in self._reading.items():
            if not num_wanted or since_s > latest_s:
                return
            if not over.done():
                over.set_result(None)
            num_wanted -= 1

    async def _take(self, peer: str) -> asyncio.Future[None]:
        """Waits for a turn; returns what tells when it is over."""
        turn: _Turn = asyncio.get_running_loop().create_future()
        entry = peer, turn
        self._waiting.append(entry)
        self.go_on()
        if not turn.done():
            self.look()
        try:
            return await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif not turn.cancelled():
                self._end(turn.result())
            raise

    def _begin(self) -> asyncio.Future[None]:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading[over] = self._now()
        return over

    def _end(self, over: asyncio.Future[None]) -> None:
        del self._reading[over]
        self.go_on()
