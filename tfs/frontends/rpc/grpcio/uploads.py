"""Reads the requests of grpcio's clients a few at a time.

If grpcio reads unary requests by itself, they are in memory, in whole or in part and
those of all clients at once, before anybody here hears of them. So unary methods are
registered as methods whose clients stream, which is the same on the wire. Then grpcio
lets a client send only its look-ahead of some kilobytes, and the rest of a message when
we ask for it.

Nobody knows how long a message is before it is there. So there are only a few *places*
to be read, which are given first to clients whose last request was short. More places
are opened, a few at each look, while the clients that have one have sent little. A
client that has a place and sends nothing is disconnected as soon as others wait.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from tfs.core.errors import Unavailable
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES
from tfs.frontends.rpc.grpcio.sockets import Traffic
from tfs.frontends.rpc.least_pace import LEAST_PACE_BYTES_PER_S

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""Seconds between two looks for clients that send nothing."""

_PLACES: Final = 4
_MOST_PLACES: Final = 48
_MORE_PLACES: Final = 4  # at a look
_SHORT_S: Final = 4.0  # for one that should have been short, where all places are taken
_OPEN_BYTES: Final = 16 << 20  # sent of requests, before no more places are opened
_KEPT_PLACES: Final = 2  # of them for clients with short requests
_STUCK_S: Final = 1.0  # where others wait
_LONGEST_S: Final = 60.0  # where nobody does, and for a whole request where others wait
_CALM_LOOKS: Final = 2  # before more places are opened
_QUICK_S: Final = 0.25
_SHORT_BYTES: Final = LARGE_BYTES // 4
_MAX_WAITING: Final = 4096  # each takes some kilobytes, and what grpcio looks ahead
_MANY_WAITING: Final = 512
_LEAST_WAITING: Final = 8  # of one client
_JAM_S: Final = 0.5
_MAX_REMEMBERED: Final = 4096


class Manner(enum.IntEnum):
    """What a client's last request was like; the lowest value is read first."""

    SHORT = 0
    UNKNOWN = 1
    LONG = 2


class Connections(Protocol):
    """The connections of clients, by their names.

    Attributes:
        num_disconnected: Connections that were ended here.

    """

    num_disconnected: int

    def traffic(self, peer: str) -> Traffic | None:
        """Returns what went over a connection; None if it is not known."""

    def disconnect(self, peer: str) -> bool:
        """Ends a connection; returns False if that is not possible."""


@dataclass(slots=True, eq=False)
class Upload:
    """One request that is being read. Confined to grpcio's thread.

    Attributes:
        client: The client that sends it.
        begun_s: When we asked for it.
        is_whole: Whether it has arrived, and waits for something else.

    """

    client: _Client
    begun_s: float
    is_whole: bool = False


@dataclass(slots=True, eq=False)
class _Client:
    peer: str
    manner: Manner
    reading: dict[Upload, None] = field(default_factory=dict)  # the oldest first
    waiting: deque[asyncio.Future[Upload]] = field(default_factory=deque)
    waits_since_s: float = 0.0  # and nothing of it was read
    num_whole: int = 0
    looked_s: float | None = None  # None: it was not looked at since it has a place
    moved_s: float = 0.0  # when it last sent something
    first_bytes: int = 0  # that it had sent beyond whole requests, at the first look
    seen_bytes: int = 0  # at the last
    delivered_bytes: int = 0


class Uploads:
    """Decides which clients may send a whole request now. Confined to grpcio's thread.

    Attributes:
        num_waiting: Calls whose requests wait to be read.
        most_bytes: The longest request since this was set to 0.

    Args:
        now: The time in seconds.
        is_open_to: Tells whether a client may have more answers; call :meth:`go_on`
            when that changes.
        connections: The connections of the clients.

    """

    def __init__(
        self,
        now: Callable[[], float],
        is_open_to: Callable[[str], bool],
        connections: Connections,
    ) -> None:
        self.num_waiting = 0
        self.most_bytes = 0
        self._now = now
        self._is_open_to = is_open_to
        self._connections = connections
        self._num_reading = 0
        self._num_whole = 0
        self._places = _PLACES
        self._clients: dict[str, _Client] = {}
        self._waiting: dict[_Client, None] = {}  # those with calls that wait
        self._manners: dict[str, Manner] = {}
        self._looked_s = float("-inf")
        self._num_calm = 0  # looks
        self._held_bytes = 0  # sent by those who have places, as far as that is known
        self._is_jammed = False

    def take(self, peer: str) -> Upload | None:
        """Returns the right to read a request, which the caller ends; None if not now."""
        client = self._clients.get(peer)
        if client is None:
            manner = self._manners.get(peer, Manner.UNKNOWN)
            client = self._clients[peer] = _Client(peer, manner)
        if client.waiting or not self._has_place(client):
            return None
        return self._begin(client)

    async def wait(self, peer: str) -> Upload:
        """Waits for a place, and returns the right that :meth:`take` did not give.

        Raises:
            Unavailable: Too many requests of this client wait.

        """
        client = self._clients[peer]
        if len(client.waiting) >= self._most_waiting():
            self._tidy(client)
            raise _too_many()
        if not client.waiting:
            client.waits_since_s = self._now()
        turn: asyncio.Future[Upload] = asyncio.get_running_loop().create_future()
        client.waiting.append(turn)
        self.num_waiting += 1
        self._waiting[client] = None
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                if turn.exception() is None:
                    self.end(turn.result())
            elif turn in client.waiting:
                client.waiting.remove(turn)
                self._note_left(client)
                self._tidy(client)
            raise

    def note_whole(self, upload: Upload, num_bytes: int) -> None:
        """Notes that a request has arrived; a long one keeps its right until that is ended.

        Raises:
            Unavailable: It is long, and too many others wait for the same.

        """
        client = upload.client
        is_short = num_bytes < LARGE_BYTES and self._now() - upload.begun_s < _QUICK_S
        manner = Manner.SHORT if is_short else Manner.LONG
        if client.manner is not manner:
            client.manner = manner
            if len(self._manners) >= _MAX_REMEMBERED:
                del self._manners[next(iter(self._manners))]
            self._manners[client.peer] = manner
        client.delivered_bytes += num_bytes
        if num_bytes < LARGE_BYTES:
            self.end(upload)
            return
        if self._num_whole >= self._places:
            raise Unavailable(
                "too many long requests wait for others' answers to be read",
                retry_after_s=1.0,
            )
        self.most_bytes = max(self.most_bytes, num_bytes)
        upload.is_whole = True
        client.num_whole += 1
        self._num_whole += 1
        self._num_reading -= 1
        del client.reading[upload]
        self.go_on()

    def end(self, upload: Upload) -> None:
        """Gives a right back, whatever happened to the request; idempotent."""
        client = upload.client
        if upload.is_whole:
            upload.is_whole = False
            client.num_whole -= 1
            self._num_whole -= 1
        elif upload in client.reading:
            del client.reading[upload]
            self._num_reading -= 1
        else:
            return
        if not client.reading:
            client.looked_s = None
        self._tidy(client)
        self.go_on()

    def go_on(self) -> None:
        """Lets requests be read that waited and have a place now."""
        while self._waiting and self._num_reading < self._places:
            client = min(
                filter(self._has_place, self._waiting), key=_precedence, default=None
            )
            if client is None:
                return
            turn = client.waiting.popleft()
            client.waits_since_s = self._now()
            self._note_left(client)
            if not turn.done():
                turn.set_result(self._begin(client))

    def look(self) -> None:
        """Disconnects clients that send nothing; to be called every :data:`LOOK_S`."""
        now_s = self._now()
        # Without a processor we hear late of what came, which is no client's fault.
        is_late = now_s - self._looked_s > 2 * LOOK_S
        self._looked_s = now_s
        is_anybody_stuck = False
        num_slow = 0
        self._held_bytes = 0
        for client in list(self._clients.values()):
            if client.reading:
                if is_late:
                    client.moved_s = now_s
                is_anybody_stuck |= self._look_at(client, now_s)
                num_slow += sum(
                    now_s - each.begun_s >= LOOK_S for each in client.reading
                )
            elif client.manner is Manner.UNKNOWN:
                self._guess_manner(client)
        # Quick ones would not be quicker for more places, and nobody sees what they hold.
        is_slow = num_slow >= self._places - _KEPT_PLACES
        if self._num_whole or self._held_bytes >= _OPEN_BYTES or not is_slow:
            self._num_calm = 0
        else:
            self._num_calm += 1
        if not self._waiting:
            self._num_calm = 0
            self._places = max(_PLACES, self._places - _MORE_PLACES)
        elif self._num_calm > _CALM_LOOKS:
            self._places = min(_MOST_PLACES, self._places + _MORE_PLACES)
        self._is_jammed = (
            self.num_waiting > _MANY_WAITING
            and (is_anybody_stuck or self._held_bytes >= _OPEN_BYTES)
            and any(now_s - each.waits_since_s > _JAM_S for each in self._waiting)
        )
        if self._is_jammed:
            for client in list(self._waiting):
                self._refuse_excess(client)
        self.go_on()

    def _most_waiting(self) -> int:
        """Returns how many calls of one client may wait."""
        if self._is_jammed:
            return _LEAST_WAITING
        return max(_LEAST_WAITING, _MAX_WAITING // (len(self._waiting) + 1))

    def _refuse_excess(self, client: _Client) -> None:
        while len(client.waiting) > _LEAST_WAITING:
            turn = client.waiting.pop()
            self.num_waiting -= 1
            if not turn.done():
                turn.set_exception(_too_many())

    def _guess_manner(self, client: _Client) -> None:
        """Guesses whether a new client's request is short, or its windows are full."""
        traffic = self._connections.traffic(client.peer)
        if traffic is not None and traffic.received_bytes < _SHORT_BYTES:
            client.manner = Manner.SHORT

    def _look_at(self, client: _Client, now_s: float) -> bool:
        """Returns whether a client holds a place and sends nothing."""
        begun_s = next(iter(client.reading)).begun_s
        if now_s - begun_s < _QUICK_S:
            client.looked_s = None
            return False
        traffic = self._connections.traffic(client.peer)
        if traffic is None:
            return True  # it is about to end
        sent_bytes = traffic.received_bytes - client.delivered_bytes
        if client.looked_s is None:
            client.looked_s = client.moved_s = now_s
            client.seen_bytes = sent_bytes
            # All that a new client sent is of this request.
            client.first_bytes = sent_bytes if client.delivered_bytes else 0
            self._held_bytes += sent_bytes - client.first_bytes
            return False  # for all that is known
        wanted_bytes = (now_s - client.looked_s) * LEAST_PACE_BYTES_PER_S
        has_sent = sent_bytes - client.seen_bytes >= wanted_bytes
        # What the system has and grpcio did not read is no fault of the client.
        if has_sent or traffic.unread_bytes:
            client.moved_s = now_s
        client.looked_s = now_s
        client.seen_bytes = sent_bytes
        self._held_bytes += sent_bytes - client.first_bytes
        if now_s - client.moved_s >= (_STUCK_S if self._waiting else _LONGEST_S) or (
            self._waiting and now_s - begun_s > self._most_s(client)
        ):
            log.warning(
                "event=slow_sender peer=%s num_requests=%d is_closed=%s note=%r",
                client.peer,
                len(client.reading),
                self._connections.disconnect(client.peer),
                "it began requests and sends no more of them",
            )
        return not has_sent

    def _most_s(self, client: _Client) -> float:
        """Returns how long a request may take while others wait for it."""
        is_full = self._num_reading >= self._places
        return _SHORT_S if is_full and client.manner is Manner.SHORT else _LONGEST_S

    def _has_place(self, client: _Client) -> bool:
        num_taken = self._num_reading
        if client.manner is not Manner.SHORT:
            num_taken += self._num_whole + _KEPT_PLACES
        return num_taken < self._places and self._is_open_to(client.peer)

    def _begin(self, client: _Client) -> Upload:
        upload = Upload(client, self._now())
        client.reading[upload] = None
        self._num_reading += 1
        return upload

    def _note_left(self, client: _Client) -> None:
        self.num_waiting -= 1
        if not client.waiting:
            del self._waiting[client]

    def _tidy(self, client: _Client) -> None:
        if not (client.reading or client.waiting or client.num_whole):
            self._clients.pop(client.peer, None)


def _too_many() -> Unavailable:
    return Unavailable(
        "too many requests of this connection wait to be read; send fewer at a time, "
        "or more slowly",
        retry_after_s=1.0,
    )


def _precedence(client: _Client) -> tuple[int, int]:
    return client.manner, len(client.reading)
