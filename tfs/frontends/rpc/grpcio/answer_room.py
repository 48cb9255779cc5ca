"""Limits answers that grpcio's clients do not take, for the whole server.

grpcio keeps every answer until the client's windows and socket have taken it, however
long that takes. It only tells us when an answer is gone. So requests whose answers are
expected to be long wait here until earlier answers have been read. While a client has
many unread answers, no further requests of it are read
(:mod:`tfs.frontends.rpc.grpcio.uploads`). A client that takes nothing while others wait
is disconnected. The operating system tells how much a client has taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import Unavailable
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES, AnswerSizes
from tfs.frontends.rpc.grpcio.connections import Connections
from tfs.frontends.rpc.least_pace import LEAST_PACE_BYTES_PER_S

log = logging.getLogger(__name__)

_READERS: Final = 4  # one client may take this fraction (1/4) of the open room
_PATIENCE_S: Final = 2.0  # how long a client may take nothing while others wait
# How long it may take nothing while nobody waits, and how long an answer may stay
# unread while others wait.
_LONGEST_S: Final = 30.0
_YOUNG_S: Final = 1.0
_CALL_BYTES: Final = 4096  # what grpcio keeps of a call besides its answer
_OWN_BYTES: Final = 262_144  # each client may leave this unread, whatever others do
_STEPS: Final = 4  # the room grows by this fraction (1/4) of its first size
_MOST: Final = 8  # the most that the room grows to, as a multiple of the first size
# Looks, one second apart, without a disconnected client before the room grows. Clients
# that take nothing are gone by then.
_CALM_LOOKS: Final = 3
_DRAINED_S: Final = 30.0  # good readers would empty the open room in this time
_MOST_READERS: Final = 4096  # that are remembered
_TURNS: Final = 4  # one of so many goes to the longest waiting, whoever that is


@dataclass(slots=True, eq=False)
class Taken:
    """The part of the room that one request takes. Confined to grpcio's thread.

    Attributes:
        peer: The client, by grpcio's name.
        num_bytes: Bytes of its answer, as far as known, and of the call.
        answered_s: When the client could begin to take the answer; None before that.
        is_claimed: Whether a short request said itself that it is long. Its answer says
            nothing about other short requests.

    """

    peer: str
    num_bytes: int
    answered_s: float | None = None
    is_claimed: bool = False


class AnswerRoom:
    """The room for answers, shared by all clients. Confined to grpcio's thread.

    Attributes:
        taken_bytes: Bytes of answers that are under way or unread.
        most_bytes: The most that was taken since this was set to 0.

    Args:
        open_bytes: How much memory answers may take before further ones wait. An answer
            longer than that is let in when little is taken.
        now: The time in seconds.
        connections: The connections of the clients.
        on_room: Called when there may be room that was not there before.
        sizes: What is known of models' answers; by default what clients got.

    """

    def __init__(
        self,
        open_bytes: int,
        now: Callable[[], float],
        connections: Connections,
        on_room: Callable[[], None] = lambda: None,
        sizes: AnswerSizes | None = None,
    ) -> None:
        self.taken_bytes = 0
        self.most_bytes = 0
        self._least_bytes = self._open_bytes = open_bytes
        self._now = now
        self._connections = connections
        self._on_room = on_room
        self._sizes = sizes or AnswerSizes()
        self._taken: dict[Taken, None] = {}  # the oldest first
        self._by_peer: dict[str, int] = {}
        self._paces: dict[str, tuple[float, float, int]] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        # Clients that have read a long answer, whose requests need not wait behind those
        # of others who may read nothing. The longest known first.
        self._readers: dict[str, None] = {}
        self._num_turns = 0
        self._has_refused = False  # whether a client was refused since the last look
        self._drained_bytes = 0
        self._num_calm = 0  # looks in a row that found only good readers
        self._num_disconnected = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room for their answers."""
        return len(self._waiting)

    def is_open_to(self, peer: str) -> bool:
        """Tells whether another request of a client may be read."""
        num_bytes = self._by_peer.get(peer, 0)
        if num_bytes <= _OWN_BYTES:
            return True
        if (
            self.taken_bytes <= self._open_bytes
            and num_bytes <= self._open_bytes // _READERS
        ):
            return True
        self._has_refused = True
        return False

    def is_reader(self, peer: str) -> bool:
        """Tells whether a client is known to have read a long answer."""
        return peer in self._readers

    async def enter(
        self, peer: str, request: bytes | memoryview, claimed_bytes: int = 0
    ) -> Taken:
        """Waits for room for a request's answer, if that is expected to be long.

        Args:
            peer: The client.
            request: What it asks.
            claimed_bytes: How long a short request is once it is decoded.

        Returns:
            Its part of the room, to be given back when the call is over.

        """
        is_claimed = claimed_bytes >= LARGE_BYTES > len(request)
        num_bytes = self._sizes.expected_bytes(request, peer)
        if is_claimed:
            num_bytes = max(num_bytes, claimed_bytes)
        if num_bytes < LARGE_BYTES:
            return self._take(peer, num_bytes)
        if not self._has_room(peer, num_bytes):
            turn = asyncio.get_running_loop().create_future()
            entry = peer, num_bytes, turn
            self._waiting.append(entry)
            try:
                await turn
            except asyncio.CancelledError:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                else:
                    self._go_on()  # the next has the turn that this call was given
                raise
        taken = self._take(peer, num_bytes)
        taken.is_claimed = is_claimed
        self._go_on()
        return taken

    def answer(self, taken: Taken, request: bytes | memoryview, size: int) -> None:
        """Notes the length of the answer that a client is about to get.

        Raises:
            Unavailable: It is long, nobody knew that before, and there is no room.

        """
        now_s = self._now()
        grown_bytes = size + _CALL_BYTES - taken.num_bytes
        if not taken.is_claimed:
            self._sizes.note(request, size, now_s, taken.peer)
        if size >= LARGE_BYTES:
            self.most_bytes = max(self.most_bytes, self.taken_bytes + grown_bytes)
        if (
            grown_bytes >= LARGE_BYTES
            and self.taken_bytes > self._least_bytes
            and self.taken_bytes + grown_bytes > self._least_bytes * _MOST
        ):
            raise Unavailable(
                "too many long answers wait to be read; try again after a pause",
                retry_after_s=1.0,
            )
        taken.answered_s = now_s
        self._set(taken, size)

    def begin_stream(self, peer: str) -> Taken:
        """Returns the part of a stream, to be given back when that is over."""
        return self._take(peer, LARGE_BYTES)

    def expect(self, taken: Taken) -> None:
        """Notes that a stream is about to send another message."""
        self._set(taken, max(taken.num_bytes - _CALL_BYTES, LARGE_BYTES))

    def note_unsent(self, taken: Taken, num_bytes: int) -> None:
        """Notes how long the messages are that a stream has not sent yet."""
        taken.answered_s = self._now() if num_bytes else None
        self._set(taken, num_bytes)

    def leave(self, taken: Taken) -> None:
        """Gives back the part of a call that is over; to be called once."""
        del self._taken[taken]
        self._add(taken, -taken.num_bytes)
        if taken.answered_s is not None and taken.num_bytes >= LARGE_BYTES:
            self._note_reader(taken.peer)
        if not self._by_peer[taken.peer]:
            del self._by_peer[taken.peer]
        self._go_on()

    def look(self) -> None:
        """Disconnects clients that read nothing; to be called about once a second."""
        now_s = self._now()
        self._sizes.sweep(now_s)
        is_contested = bool(self._waiting) or self._has_refused
        self._has_refused = False
        allowed_s = _PATIENCE_S if is_contested else _LONGEST_S
        unread: dict[str, float] = {}  # since when each client has unread answers
        for each in self._taken:
            if each.answered_s is not None:
                unread.setdefault(each.peer, each.answered_s)
        paces, self._paces = self._paces, {}
        self._drained_bytes = 0
        for peer, since_s in unread.items():
            if now_s - since_s < _YOUNG_S:
                continue
            idle_since_s = self._idle_since_s(peer, since_s, now_s, paces.get(peer))
            is_too_long = is_contested and now_s - since_s > _LONGEST_S
            if is_too_long or now_s - idle_since_s > allowed_s:
                log.warning(
                    "event=slow_reader peer=%s waiting_bytes=%d is_closed=%s note=%r",
                    self._connections.address(peer),
                    self._by_peer[peer],
                    self._connections.disconnect(peer),
                    "it takes no answers while others wait for room",
                )
        self._adjust(is_contested)

    def _adjust(self, is_contested: bool) -> None:
        """Opens more room if requests wait only for clients that read well."""
        num_disconnected = self._connections.num_disconnected
        is_calm = num_disconnected == self._num_disconnected
        self._num_disconnected = num_disconnected
        step_bytes = self._least_bytes // _STEPS
        if not is_contested:
            self._num_calm = 0
            self._open_bytes = max(self._least_bytes, self._open_bytes - step_bytes)
        elif not is_calm or self._drained_bytes * _DRAINED_S < self._open_bytes:
            self._num_calm = 0
        else:
            self._num_calm += 1
            if self._num_calm > _CALM_LOOKS:
                most_bytes = self._least_bytes * _MOST
                self._open_bytes = min(most_bytes, self._open_bytes + step_bytes)
                self._go_on()

    def _idle_since_s(
        self,
        peer: str,
        since_s: float,
        now_s: float,
        pace: tuple[float, float, int] | None,
    ) -> float:
        """Returns the time since which a client has taken next to nothing."""
        traffic = self._connections.traffic(peer)
        if traffic is None:
            return since_s
        if pace is not None:
            since_s, looked_s, acked_bytes = pace
            num_bytes = traffic.acked_bytes - acked_bytes
            self._drained_bytes += num_bytes
            if num_bytes > (now_s - looked_s) * LEAST_PACE_BYTES_PER_S:
                since_s = now_s
        self._paces[peer] = since_s, now_s, traffic.acked_bytes
        return since_s

    def _take(self, peer: str, num_bytes: int) -> Taken:
        num_bytes += _CALL_BYTES
        taken = Taken(peer, num_bytes)
        self._taken[taken] = None
        self._by_peer.setdefault(peer, 0)
        self._add(taken, num_bytes)
        return taken

    def _set(self, taken: Taken, num_bytes: int) -> None:
        num_bytes += _CALL_BYTES
        grown_bytes = num_bytes - taken.num_bytes
        if grown_bytes:
            taken.num_bytes = num_bytes
            self._add(taken, grown_bytes)
            if grown_bytes < 0 or self._waiting:
                self._go_on()

    def _add(self, taken: Taken, num_bytes: int) -> None:
        self.taken_bytes += num_bytes
        self._by_peer[taken.peer] += num_bytes
        self.most_bytes = max(self.most_bytes, self.taken_bytes)

    def _has_room(self, peer: str, num_bytes: int) -> bool:
        share_bytes = self._open_bytes // _READERS
        if self._by_peer.get(peer, 0) > share_bytes:
            return False
        return (
            self.taken_bytes + num_bytes <= self._open_bytes
            or self.taken_bytes <= share_bytes
        )

    def _note_reader(self, peer: str) -> None:
        """Remembers a client that has taken a long answer, unless it left instead."""
        if peer in self._readers or self._connections.traffic(peer) is None:
            return
        if len(self._readers) >= _MOST_READERS:
            del self._readers[next(iter(self._readers))]
        self._readers[peer] = None

    def _go_on(self) -> None:
        """Lets in the next waiting request that has room, which lets in another."""
        found = None
        for entry in self._waiting:
            if not self._has_room(entry[0], entry[1]):
                continue
            if entry[0] in self._readers or self._num_turns % _TURNS == 0:
                found = entry
                break
            found = found or entry
        if found is None:
            self._on_room()
            return
        self._num_turns += 1
        self._waiting.remove(found)
        if not found[2].done():
            found[2].set_result(None)
