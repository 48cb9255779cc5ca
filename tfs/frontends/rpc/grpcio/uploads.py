"""Reads the requests of grpcio's clients a few at a time.

If grpcio reads unary requests by itself, it holds the requests of all clients in
memory, whole or in part, before it tells us about them. So unary methods are registered
as methods whose clients stream, which is the same on the wire. Then a client may send
only grpcio's look-ahead of some kilobytes until we ask for the message.

The length of a message is not known before it has arrived. So only a few requests are
read at a time. Each takes a *place*, and clients whose last request was short get
places first. More places are opened, a few at each look, while the clients that have
one have sent little. Whether a client that has a place uses it is watched elsewhere
(:mod:`tfs.frontends.rpc.grpcio.sender_watch`).
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tfs.core.errors import Unavailable
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES
from tfs.frontends.rpc.grpcio.connections import Connections
from tfs.frontends.rpc.grpcio.sender_watch import LOOK_S, SenderWatch, Turn

LOOKAHEAD_BYTES: Final = 8192
"""What clients may send of a request before it is read; shorter ones are whole then."""

_PLACES: Final = 4
_MOST_PLACES: Final = 48
_MORE_PLACES: Final = 4  # opened, or closed, at one look
_OPEN_BYTES: Final = 16 << 20  # no places are opened while partial requests hold this
_KEPT_PLACES: Final = 2  # places that only short requests get
_CALM_LOOKS: Final = 2  # looks that must find little sent before places are opened
_QUICK_S: Final = 0.25
_TURNS: Final = 4  # one of so many requests is read of whoever waits longest
# Calls that may wait. Each takes some kilobytes, besides what grpcio reads ahead.
_MAX_WAITING: Final = 4096
_MANY_WAITING: Final = 512
_LEAST_WAITING: Final = 8  # calls that each client may have waiting in any case
_JAM_S: Final = 0.5
_MAX_REMEMBERED: Final = 4096


class Manner(enum.IntEnum):
    """What a client's last request was like; the lowest value is read first."""

    SHORT = 0
    UNKNOWN = 1
    LONG = 2


@dataclass(slots=True, eq=False)
class Upload:
    """One request that is being read. Confined to grpcio's thread.

    Attributes:
        client: The client that sends it.
        begun_s: When we asked for it.
        is_short: Whether it should be, as its client's last one.
        is_whole: Whether it has arrived, and waits for something else.

    """

    client: _Client
    begun_s: float
    is_short: bool
    is_whole: bool = False


@dataclass(slots=True, eq=False)
class _Client:
    peer: str
    manner: Manner
    is_new: bool  # no whole request had arrived over its connection before
    reading: dict[Upload, None] = field(default_factory=dict)  # the oldest first
    waiting: deque[asyncio.Future[Upload]] = field(default_factory=deque)
    waits_since_s: float = 0.0  # when a call began to wait, or one last got a place
    num_whole: int = 0
    reading_since_s: float = 0.0
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
        is_reader: Tells whether a client is known to read long answers. Its long
            requests go before those of others.

    One turn in four goes to whoever has waited longest, so that nobody waits for ever
    for those that go first.

    """

    def __init__(
        self,
        now: Callable[[], float],
        is_open_to: Callable[[str], bool],
        connections: Connections,
        is_reader: Callable[[str], bool] = lambda peer: False,
    ) -> None:
        self.num_waiting = 0
        self.most_bytes = 0
        self._now = now
        self._is_open_to = is_open_to
        self._connections = connections
        self._is_reader = is_reader
        self._num_turns = 0
        self._watch = SenderWatch(connections)
        self._num_reading = 0
        self._num_long = 0  # of those that are read; may be long
        self._num_whole = 0
        self._places = _PLACES
        self._clients: dict[str, _Client] = {}
        self._waiting: dict[_Client, None] = {}  # the clients whose calls wait
        self._manners: dict[str, Manner] = {}
        self._num_calm = 0  # looks in a row that found slow clients and little sent
        self._is_jammed = False

    def take(self, peer: str) -> Upload | None:
        """Returns the right to read a request, which the caller ends; None if not now."""
        client = self._client(peer)
        if client.waiting or not self._has_place(client):
            return None
        return self._begin(client)

    async def wait(self, peer: str) -> Upload:
        """Waits for a place, and returns the right that :meth:`take` did not give.

        Raises:
            Unavailable: Too many requests of this client wait.

        """
        client = self._client(peer)
        if len(client.waiting) >= self._most_waiting():
            raise _too_many()
        if not client.waiting:
            client.waits_since_s = self._now()
        turn: asyncio.Future[Upload] = asyncio.get_running_loop().create_future()
        client.waiting.append(turn)
        self._clients[peer] = client
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

    def note_message(self, upload: Upload, num_bytes: int) -> None:
        """Notes that a request has arrived, and what its client is like."""
        client = upload.client
        is_short = num_bytes < LARGE_BYTES and self._now() - upload.begun_s < _QUICK_S
        manner = Manner.SHORT if is_short else Manner.LONG
        if client.manner is not manner:
            client.manner = manner
            if len(self._manners) >= _MAX_REMEMBERED:
                del self._manners[next(iter(self._manners))]
            self._manners[client.peer] = manner
        client.delivered_bytes += num_bytes
        self.note_length(num_bytes)

    def note_length(self, num_bytes: int) -> None:
        """Notes how long a message was that was read without a place."""
        self.most_bytes = max(self.most_bytes, num_bytes)

    def note_whole(self, upload: Upload, num_bytes: int) -> None:
        """Notes that a request has arrived; a long one keeps its right until that is ended.

        Raises:
            Unavailable: It is long, and too many others wait for the same.

        """
        self.note_message(upload, num_bytes)
        if num_bytes < LARGE_BYTES:
            self.end(upload)
            return
        if self._num_whole >= self._places:
            raise Unavailable(
                "too many long requests wait for others' answers to be read",
                retry_after_s=1.0,
            )
        client = upload.client
        upload.is_whole = True
        client.num_whole += 1
        self._num_whole += 1
        self._note_read(upload)
        self.go_on()

    def end(self, upload: Upload) -> None:
        """Gives a right back, whatever happened to the request; idempotent."""
        client = upload.client
        if upload.is_whole:
            upload.is_whole = False
            client.num_whole -= 1
            self._num_whole -= 1
        elif upload in client.reading:
            self._note_read(upload)
        else:
            return
        self._tidy(client)
        self.go_on()

    def go_on(self) -> None:
        """Lets requests be read that waited and have a place now."""
        while self._waiting and self._num_reading < self._places:
            client = min(
                filter(self._has_place, self._waiting),
                key=self._precedence,
                default=None,
            )
            if client is None:
                return
            self._num_turns += 1
            turn = client.waiting.popleft()
            client.waits_since_s = self._now()
            self._note_left(client)
            if turn.done():  # its call was cancelled
                self._tidy(client)
            else:
                turn.set_result(self._begin(client))

    def look(self) -> None:
        """Adjusts the places to what was sent; to be called every :data:`LOOK_S`."""
        now_s = self._now()
        turns = [self._turn(each) for each in self._clients.values() if each.reading]
        seen = self._watch.look(turns, now_s, is_contested=bool(self._waiting))
        for client in self._waiting:
            if client.manner is Manner.UNKNOWN and not client.reading:
                self._guess_manner(client)
        is_much_held = seen.held_bytes >= _OPEN_BYTES
        self._adjust_places(now_s, is_much_held)
        self._is_jammed = (
            self.num_waiting > _MANY_WAITING
            and (seen.is_anybody_stuck or is_much_held)
            and any(now_s - each.waits_since_s > _JAM_S for each in self._waiting)
        )
        if self._is_jammed:
            for client in list(self._waiting):
                self._refuse_excess(client)
        self.go_on()

    def _client(self, peer: str) -> _Client:
        """Returns a client, which is kept only once it has a request or a call waits."""
        client = self._clients.get(peer)
        if client is not None:
            return client
        manner = self._manners.get(peer)
        return _Client(
            peer, Manner.UNKNOWN if manner is None else manner, manner is None
        )

    def _turn(self, client: _Client) -> Turn:
        return Turn(
            client.peer,
            client.reading_since_s,
            next(iter(client.reading)).begun_s,
            len(client.reading),
            client.delivered_bytes,
            is_new=client.is_new,
            is_hurried=self._num_reading >= self._places
            and client.manner is Manner.SHORT,
        )

    def _adjust_places(self, now_s: float, is_much_held: bool) -> None:
        # More places would not make quick requests quicker, and how much memory those
        # take is not known.
        num_slow = sum(
            now_s - upload.begun_s >= LOOK_S
            for client in self._clients.values()
            for upload in client.reading
        )
        is_slow = num_slow >= self._places - _KEPT_PLACES
        if not self._waiting or self._num_whole or is_much_held or not is_slow:
            self._num_calm = 0
        else:
            self._num_calm += 1
        if not self._waiting:
            self._places = max(_PLACES, self._places - _MORE_PLACES)
        elif self._num_calm > _CALM_LOOKS:
            self._places = min(_MOST_PLACES, self._places + _MORE_PLACES)

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
        if traffic is not None and traffic.received_bytes < LOOKAHEAD_BYTES:
            client.manner = Manner.SHORT

    def _has_place(self, client: _Client) -> bool:
        num_left = self._places - self._num_reading
        if client.manner is not Manner.SHORT:
            num_long = self._num_long + self._num_whole + _KEPT_PLACES
            num_left = min(num_left, self._places - num_long)
        return num_left > 0 and self._is_open_to(client.peer)

    def _precedence(self, client: _Client) -> tuple[int, int, int, float]:
        if self._num_turns % _TURNS == 0:
            return 0, 0, 0, client.waits_since_s
        is_short = client.manner is Manner.SHORT
        return (
            not (is_short or self._is_reader(client.peer)),
            client.manner,
            len(client.reading),
            client.waits_since_s,
        )

    def _begin(self, client: _Client) -> Upload:
        now_s = self._now()
        if not client.reading:
            client.reading_since_s = now_s
        upload = Upload(client, now_s, client.manner is Manner.SHORT)
        client.reading[upload] = None
        self._clients[client.peer] = client
        self._num_reading += 1
        self._num_long += not upload.is_short
        return upload

    def _note_read(self, upload: Upload) -> None:
        del upload.client.reading[upload]
        self._num_reading -= 1
        self._num_long -= not upload.is_short

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
