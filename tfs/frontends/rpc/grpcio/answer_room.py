"""Answers that clients of grpcio's server do not take, bounded for the whole server.

grpcio keeps an answer until the client's windows and socket have taken it, however long that
is and however many there are. It tells us when an answer is gone, and nothing before. So
requests whose answers will be long, as far as that is known, wait here for those before
them to be read, and who reads nothing while others wait is disconnected.

What grpcio leaves no way to bound is what clients send: a message is in memory before
anybody here hears of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tfs.frontends.rpc.express.answer_sizes import LARGE_BYTES, AnswerSizes
from tfs.frontends.rpc.grpcio import sockets

log = logging.getLogger(__name__)

_READERS: Final = 4  # whose unread answers fill what is open
_PATIENCE_S: Final = 2.0  # where others wait
_LONGEST_S: Final = 30.0  # where nobody does


@dataclass(slots=True, eq=False)
class Taken:
    """What one request takes of the room. Confined to grpcio's thread.

    Attributes:
        peer: Whose it is, in grpcio's words.
        num_bytes: Of its answer, as far as that is known.
        answered_s: Since when the client may take it; None before.

    """

    peer: str
    num_bytes: int
    answered_s: float | None = None


class AnswerRoom:
    """What long answers may take together. Confined to grpcio's thread.

    Attributes:
        taken_bytes: By those under way and unread.

    Args:
        open_bytes: What they may take before the next wait; one longer than that has its
            turn when little is taken.
        now: The time in seconds.
        disconnect: Closes the connection of a peer; False if it cannot.

    """

    def __init__(
        self,
        open_bytes: int,
        now: Callable[[], float],
        disconnect: Callable[[str], bool] = sockets.disconnect,
    ) -> None:
        self.taken_bytes = 0
        self._open_bytes = open_bytes
        self._now = now
        self._disconnect = disconnect
        self._sizes = AnswerSizes()
        self._taken: dict[Taken, None] = {}  # the oldest first
        self._by_peer: dict[str, int] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    async def enter(self, peer: str, request: bytes, context: Any) -> Taken | None:
        """Waits for room for a request's answer.

        Returns what it takes, until grpcio's context is done; None if that is nothing worth
        counting.
        """
        num_bytes = self._sizes.expected_bytes(request)
        if num_bytes < LARGE_BYTES:
            return None
        if not self._has_room(peer, num_bytes):
            turn = asyncio.get_running_loop().create_future()
            entry = peer, num_bytes, turn
            self._waiting.append(entry)
            try:
                await turn
            except asyncio.CancelledError:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                raise
        taken = self._take(peer, num_bytes, context)
        self._go_on()
        return taken

    def answer(
        self, taken: Taken | None, peer: str, request: bytes, size: int, context: Any
    ) -> None:
        """Takes note of how long the answer is that a client is about to get."""
        now_s = self._now()
        if size >= LARGE_BYTES:
            self._sizes.note(request, size, now_s)
            if taken is None:
                taken = self._take(peer, size, context)
        if taken is not None:
            self._add(taken, size - taken.num_bytes)
            taken.num_bytes = size
            taken.answered_s = now_s
            self._go_on()

    def look(self) -> None:
        """Disconnects who reads nothing; to be called about once a second."""
        now_s = self._now()
        self._sizes.sweep(now_s)
        allowed_s = _PATIENCE_S if self._waiting else _LONGEST_S
        late = {
            each.peer: None
            for each in self._taken
            if each.answered_s is not None and now_s - each.answered_s > allowed_s
        }
        for peer in late:
            log.warning(
                "event=slow_reader peer=%s waiting_bytes=%d is_closed=%s note=%r",
                peer,
                self._by_peer[peer],
                self._disconnect(peer),
                "it takes no answers while others wait for room",
            )

    def _take(self, peer: str, num_bytes: int, context: Any) -> Taken:
        taken = Taken(peer, num_bytes)
        self._taken[taken] = None
        self._by_peer.setdefault(peer, 0)
        self._add(taken, num_bytes)
        context.add_done_callback(lambda _: self._leave(taken))
        return taken

    def _leave(self, taken: Taken) -> None:
        del self._taken[taken]
        self._add(taken, -taken.num_bytes)
        if not self._by_peer[taken.peer]:
            del self._by_peer[taken.peer]
        self._go_on()

    def _add(self, taken: Taken, num_bytes: int) -> None:
        self.taken_bytes += num_bytes
        self._by_peer[taken.peer] += num_bytes

    def _has_room(self, peer: str, num_bytes: int) -> bool:
        share_bytes = self._open_bytes // _READERS
        if self._by_peer.get(peer, 0) > share_bytes:
            return False
        return (
            self.taken_bytes + num_bytes <= self._open_bytes
            or self.taken_bytes <= share_bytes
        )

    def _go_on(self) -> None:
        """Lets in the first who waited and has room now, who lets in the next."""
        for entry in self._waiting:
            peer, num_bytes, turn = entry
            if self._has_room(peer, num_bytes):
                self._waiting.remove(entry)
                if not turn.done():
                    turn.set_result(None)
                return
