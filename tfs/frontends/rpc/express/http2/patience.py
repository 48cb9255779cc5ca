"""How many useless or wrong frames a connection may send before it is closed.

The known HTTP/2 floods (rapid reset CVE-2023-44487, CONTINUATION CVE-2024-27316, PING,
SETTINGS, empty frames) all make the server work without asking it for anything. Each
such frame costs points. Points come back with time, and with every message that the
client is sent, because real clients follow answers with small window updates and PINGs,
and clients that hedge often cancel. A client that sends nothing else is closed after a
few hundred such frames.

There are enough points for what a well-behaved client may do all at once: give up all
of the 1,024 calls that it may have open, and open as many again while fewer are
allowed. Giving a call up when its deadline passes, or after a second, costs nothing,
because no flood is that slow.
"""

from __future__ import annotations

import enum
from typing import Final

from tfs.frontends.rpc.frames import ConnectionFault, ErrorCode

_MAX_POINTS: Final = 2000.0
_POINTS_PER_S: Final = 100.0
_POINTS_PER_MESSAGE: Final = 20.0  # regained for each message sent to the client
# After each small message a client sends a WINDOW_UPDATE. Those of a thousand streams
# may come all at once, perhaps with the frames that reset the streams.
_UPDATES_PER_MESSAGE: Final = 2
_MAX_UPDATES: Final = 4096


class Annoyance(enum.Enum):
    """The kinds of frames that cost points.

    Attributes:
        words: What it is called in the reason that the client reads.
        points: What one of it costs.

    """

    PING = "PING", 5
    SETTINGS = "SETTINGS", 20
    RST_STREAM = "RST_STREAM", 1.9
    STREAM_ERROR = "stream errors", 10
    EMPTY_DATA = "empty DATA", 5
    LARGE_BLOCK = "large header blocks", 50
    SMALL_CONTINUATION = "small CONTINUATION", 20
    TINY_WINDOW_UPDATE = "tiny WINDOW_UPDATE", 2
    PRIORITY = "PRIORITY", 2
    IGNORED_FRAME = "ignored frames", 1
    REFUSED_STREAM = "refused streams", 5
    NO_ROOM = "streams that there is no room for", 1

    # The words are part of the value, because members with equal values would be one
    # member.
    def __init__(self, words: str, points: float) -> None:
        self.words = words
        self.points = points


class Patience:
    """A leaky bucket of points for one connection. Loop-confined."""

    __slots__ = ("_at_s", "_free_updates", "_left", "_seen")

    def __init__(self, now_s: float) -> None:
        self._left = _MAX_POINTS
        self._at_s = now_s
        self._seen = 0
        self._free_updates = 0  # WINDOW_UPDATEs expected for messages sent

    def spend(
        self, what: Annoyance, now_s: float, num_sent: int, times: int = 1
    ) -> None:
        """Charges for ``what``. ``num_sent`` counts the messages sent since the start.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM; the points are used up.

        """
        num_messages = num_sent - self._seen
        earned = (now_s - self._at_s) * _POINTS_PER_S
        earned += num_messages * _POINTS_PER_MESSAGE
        if num_messages:
            free_updates = self._free_updates + num_messages * _UPDATES_PER_MESSAGE
            self._free_updates = min(_MAX_UPDATES, free_updates)
        if what is Annoyance.TINY_WINDOW_UPDATE:
            num_free = min(times, self._free_updates)
            self._free_updates -= num_free
            times -= num_free
        self._at_s = now_s
        self._seen = num_sent
        self._left = min(_MAX_POINTS, self._left + earned) - what.points * times
        if self._left < 0:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"too many {what.words} without requests"
            )
