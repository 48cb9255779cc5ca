"""How long a client is waited for that may still be reading its last answers.

If a connection is closed while its client still sends (it acknowledges what it reads),
the kernel resets it, and what the client's side has not received by then is lost: the end
of an answer. So only the sending direction is closed at first, and whatever still
arrives is read and dropped.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import termios
from typing import Final

LOOK_S: Final = 1.0
_STALLED_S: Final = 5.0  # whoever takes nothing for so long has gone
_LONGEST_S: Final = 30.0  # as long as a drain takes, by default


def num_queued(connection: socket.socket) -> int:
    """Returns how much of what was sent the other side has not read, about."""
    queued = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return queued[0]


class Leaving:
    """What is known of one such client.

    Args:
        connection: Its connection, of which the sending direction was closed.
        now_s: When that was.

    """

    def __init__(self, connection: socket.socket, now_s: float) -> None:
        self._connection = connection
        self._num_queued = num_queued(connection)
        self._taken_s = now_s
        self._end_s = now_s + _LONGEST_S

    def is_over(self, now_s: float) -> bool:
        """Returns whether to close now; to be called every :data:`LOOK_S`.

        That is so if the client's system has everything, has taken nothing for five
        seconds, or has taken half a minute.
        """
        left = num_queued(self._connection)
        if left < self._num_queued:
            self._num_queued = left
            self._taken_s = now_s
        return not left or now_s >= min(self._end_s, self._taken_s + _STALLED_S)
