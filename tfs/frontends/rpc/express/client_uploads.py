"""One client's uploads, while memory for requests is short.

The receive budget has a reserve that one client at a time may use to finish an upload:
the *favoured* one. Whoever waits for budget is *starved*. A client is *probed* by
granting it next to nothing; one that makes use of that is *responsive*, and worth a turn
with the reserve. :class:`~tfs.frontends.rpc.express.shortage.Shortage` decides whose turn
it is. What it asks and tells for that, of each client, is here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from tfs.core.call import MethodKind
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.express_counters import ExpressCounters
from tfs.frontends.rpc.express.http2.connection import Connection
from tfs.frontends.rpc.express.http2.flow_control import too_slow
from tfs.frontends.rpc.express.http2.stream_state import StreamState

_PROBE_S: Final = 0.5  # time for a client to go on with its upload
# The favoured client must make progress within this time. One that has finished uploads
# gets twice as long.
_STALL_S: Final = 1.0
# The least progress in that time; 1 Mbit/s is seven times as much.
_LEAST_PROGRESS_BYTES: Final = 16_384
# Whoever sends less than this has a short turn, if others wait. What was sent of an upload
# stays in memory between its turns, so that others have a longer one, and are finished
# at once where much is held already.
_FAST_BYTES_PER_S: Final = 262_144
_SHORT_TURN_S: Final = 1.0
_LONG_TURN_S: Final = 4.0


class ClientUploads:
    """A client's uploads, as the receive budget sees them. Confined to the serving loop.

    The session sets ``read_s`` and says when it has starved; the shortage does the rest.

    Invariants: a closed one wants nothing and is not among the starved. It may still be
    the favoured one, until the shortage next looks. One that is held back is the favoured
    one or among the starved, or nobody would ever let it go on.

    Attributes:
        read_s: When bytes of the client were last read; kept by the session.
        had_favour: Whether it was favoured before.
        probed_s: When its client was last granted a little, to see whether it goes on.
        was_slow: Whether its last turn ended before its upload did.
        is_closed: Whether the connection is gone.

    Args:
        connection: The client's.
        starved: The clients that wait for the receive budget, the longest waiting first.
        counters: Counts clients that were given up.
        now: The loop's clock.
        mark_dirty: Requests that output is written at the end of the round.

    """

    __slots__ = (
        "_connection",
        "_counters",
        "_mark_dirty",
        "_now",
        "_num_given_up",
        "_progress",
        "_starved",
        "_turn",
        "had_favour",
        "is_closed",
        "probed_s",
        "read_s",
        "was_slow",
    )

    def __init__(
        self,
        connection: Connection,
        starved: dict[ClientUploads, None],
        counters: ExpressCounters,
        now: Callable[[], float],
        mark_dirty: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._starved = starved
        self._counters = counters
        self._now = now
        self._mark_dirty = mark_dirty
        self.read_s = now()
        self.had_favour = False
        self.was_slow = False
        self.probed_s = -inf
        self.is_closed = False
        # The last progress of the upload that it is favoured for: the time, and how
        # many bytes had arrived by then.
        self._progress = self.read_s, 0
        self._num_given_up = 0  # connection.num_given_up when it was favoured
        # When its turn began, and how much of its upload had arrived by then; None
        # until that is known.
        self._turn: tuple[float, int | None] = self.read_s, None

    # -- what the session says -------------------------------------------------------

    def starve(self) -> None:
        """Waits for the receive budget, behind those that wait already."""
        self._starved[self] = None

    def close(self) -> None:
        """Wants nothing any more, and lets go of the session, which refers to it."""
        self.is_closed = True
        self._starved.pop(self, None)
        self._mark_dirty = _do_nothing

    # -- what the shortage asks ------------------------------------------------------

    @property
    def wants_favour(self) -> bool:
        """Whether there is an upload to finish that the client may continue."""
        connection = self._connection
        return (
            not self.is_closed
            and connection.is_uploading
            and not connection.is_choked
            and (self.is_responsive or self._now() - self.probed_s < _PROBE_S)
        )

    @property
    def keeps_favour(self) -> bool:
        """Whether the upload that it was favoured for is unfinished."""
        connection = self._connection
        return (
            not self.is_closed
            and connection.is_uploading
            and not connection.is_choked
            and connection.num_given_up == self._num_given_up
        )

    @property
    def is_stalled(self) -> bool:
        """Whether the favoured client sends next to nothing of what it may.

        Also true if it gave the upload up and keeps the room for another one. This has
        to be called repeatedly. A client that has finished uploads gets more time.
        """
        connection = self._connection
        if connection.num_given_up != self._num_given_up and connection.has_window:
            return True
        uploaded_bytes = connection.uploaded_bytes
        now_s = self._now()
        if (
            uploaded_bytes is None
            or abs(uploaded_bytes - self._progress[1]) >= _LEAST_PROGRESS_BYTES
        ):
            self._progress = now_s, uploaded_bytes or 0
            return False
        allowed_s = 2 * _STALL_S if connection.num_uploads else _STALL_S
        return now_s - self._progress[0] > allowed_s

    def has_had_turn(self, *, may_be_long: bool) -> bool:
        """Tells whether the favoured client has gone on for long enough, if others wait.

        This has to be called repeatedly.

        Args:
            may_be_long: Whether only a client that is slow has had its turn.

        """
        uploaded_bytes = self._connection.uploaded_bytes
        if uploaded_bytes is None:
            return False  # it waits for the server
        now_s = self._now()
        begun_s, begun_bytes = self._turn
        if begun_bytes is None or uploaded_bytes < begun_bytes:  # it is another upload
            self._turn = now_s, uploaded_bytes
            return False
        took_s = now_s - begun_s
        if took_s > _LONG_TURN_S and not may_be_long:
            return True
        is_slow = uploaded_bytes - begun_bytes < _FAST_BYTES_PER_S * took_s
        return took_s > _SHORT_TURN_S and is_slow

    @property
    def is_held_back(self) -> bool:
        """Whether all but one of its uploads were told to wait, and wait for a word."""
        return not self.is_closed and self._connection.is_narrow

    @property
    def is_responsive(self) -> bool:
        """Whether the client has made use of what :meth:`probe` granted it."""
        return self.probed_s <= self.read_s or not self._connection.has_window

    @property
    def can_be_answered(self) -> bool:
        """Whether the client would take any part of an answer now."""
        return self._connection.can_be_answered

    @property
    def num_finished(self) -> int:
        """How many uploads the client has finished."""
        return self._connection.num_uploads

    # -- what the shortage does ------------------------------------------------------

    def favour(self, is_favoured: bool) -> None:
        """Lets the client use the budget's reserve, or ends that."""
        self._connection.favour(is_favoured)
        if is_favoured:
            self.had_favour = True
            self.probed_s = now_s = self._now()
            self._progress = now_s, 0
            self._turn = now_s, None
            self._num_given_up = self._connection.num_given_up

    def probe(self) -> None:
        """Grants the client a little, to see whether it goes on with its upload."""
        self.probed_s = self._now()
        self._connection.probe()
        self._mark_dirty()

    def refill(self) -> None:
        """Grants the client what the receive budget had no room for until now."""
        if self.is_closed:
            return
        connection = self._connection
        connection.refill()
        if connection.is_starved or connection.is_narrow:
            self._starved.setdefault(self)  # it keeps its place if it has one
        elif self.is_responsive or not connection.is_uploading:
            self._starved.pop(self, None)
        if connection.has_output:
            self._mark_dirty()

    def give_up(self) -> None:
        """Fails the uploads of a client that others cannot wait for, and drains it."""
        for stream in list(self._connection.streams.values()):
            call: ExpressCall | None = stream.owner
            if call is not None and (
                stream.is_inside_message
                or (
                    stream.state is StreamState.OPEN
                    and call.route.kind is not MethodKind.BIDIRECTIONAL
                )
            ):
                call.abort(too_slow())
        self.let_go()

    def let_go(self) -> None:
        """Drains the connection: its other calls go on, and no new ones begin."""
        self._counters.timeouts += 1
        self._connection.begin_drain()
        self._connection.finish_drain()
        self._mark_dirty()


def _do_nothing() -> None:
    """Stands in for a session that is gone."""
