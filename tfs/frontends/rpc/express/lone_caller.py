"""Looks for the next request of a client that sends one at a time.

Such a client waits for each answer before it sends the next request. So the loop is
asleep when that request arrives, and waking it (45 us on the virtual machines measured)
is a good part of the latency. Also, the loop's code and data have left the core's
caches by then, so that the request itself takes half as long again. Looking for the
request instead of sleeping saves both. It lasts until the client sends, which mostly
takes less processor time than sleeping would have cost.

The loop looks only after a few requests were received and answered one by one, with
nothing but streams under way on their connection (a Watch stays open as long as its
client lives). If no request is found, because the client is slow or shares the core
with the server, the loop looks less and less often
(:class:`~tfs.core.spin_backoff.SpinBackoff`). Without requests it does not look at all.
"""

from __future__ import annotations

from typing import Final

from tfs.core.call import MethodKind
from tfs.core.serving_loop import ServingLoop
from tfs.core.spin_backoff import SpinBackoff
from tfs.frontends.rpc.express.http2.connection import Connection

NUM_BEFORE: Final = 8
"""After this many requests that came one at a time, the loop looks for the next one."""

_MAX_WATCHES: Final = 4  # looking through more streams would cost what looking saves


class LoneCaller:
    """Makes the loop look for requests while they come one by one. Loop-confined.

    Args:
        loop: The serving loop, which looks.
        look_s: How long it looks after each answer; 0 means never.

    """

    __slots__ = (
        "_backoff",
        "_connection",
        "_is_looking",
        "_look_s",
        "_loop",
        "_num_alone",
        "_num_answered",
    )

    def __init__(self, loop: ServingLoop, look_s: float) -> None:
        self._loop = loop
        self._look_s = look_s
        self._backoff = SpinBackoff()
        self._connection: Connection | None = None  # where the last request arrived
        self._num_answered = 0  # answered on that connection before this round
        self._num_alone = 0
        self._is_looking = False

    def note_round(self, connection: Connection) -> None:
        """Takes a round into account, once its answers are written.

        Args:
            connection: The connection on which the last request arrived, in this round
                or before.

        """
        if connection is not self._connection:
            self._connection = connection
            self._num_answered = self._num_alone = 0
        num = connection.num_answered - self._num_answered
        if num == 0:
            return  # a part of a request arrived, or frames that are no request
        self._num_answered += num
        if num == 1 and not (connection.streams and _has_calls(connection)):
            self._num_alone += 1
            if self._num_alone >= NUM_BEFORE and self._look_s:
                self._is_looking = True
                until_s = self._loop.clock.now() + self._look_s
                self._loop.look_until(until_s, self._backoff)
            return
        self._num_alone = 0
        if self._is_looking:
            self._is_looking = False
            self._loop.look_until(0.0, self._backoff)


def _has_calls(connection: Connection) -> bool:
    """Tells whether any call other than a stream of messages is under way."""
    streams = connection.streams
    if len(streams) > _MAX_WATCHES:
        return True
    return any(
        stream.owner is None or stream.owner.route.kind is MethodKind.UNARY
        for stream in streams.values()
    )
