"""How many useless or wrong frames a connection may send before it is closed.

The known floods of HTTP/2 (rapid reset CVE-2023-44487, resets that a client provokes
CVE-2025-8671, CONTINUATION CVE-2024-27316, PING, SETTINGS, empty frames) make the server
work without asking it for anything. Each such frame counts, and is forgotten with time or
with messages that the client is sent: real clients follow answers with small window
updates and PINGs, and those that hedge often cancel. As many are allowed at once as a
client may have reason for: giving up all of the 1,024 calls that it may have open, and
those that it opens meanwhile.
"""

from __future__ import annotations

from typing import Final

from tfs.frontends.http2.frames import ConnectionFault, ErrorCode

_MOST: Final = 2048.0
_FORGOTTEN_PER_S: Final = 100.0
_FORGOTTEN_PER_MESSAGE: Final = 4.0


class NuisanceCounter:
    """The nuisances of one connection. Loop-confined."""

    __slots__ = ("_at_s", "_num", "_num_sent")

    def __init__(self, now_s: float) -> None:
        self._num = 0.0
        self._at_s = now_s
        self._num_sent = 0

    def count(self, what: str, now_s: float, num_sent: int, times: int = 1) -> None:
        """Counts frames of a kind.

        Args:
            what: Their kind, for the reason that the client reads.
            now_s: The time.
            num_sent: How many messages the client was sent since the start.
            times: How many there are; more than one for what costs more work.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM; they are too many.

        """
        forgotten = (now_s - self._at_s) * _FORGOTTEN_PER_S
        forgotten += (num_sent - self._num_sent) * _FORGOTTEN_PER_MESSAGE
        self._at_s = now_s
        self._num_sent = num_sent
        self._num = max(0.0, self._num - forgotten) + times
        if self._num > _MOST:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"too many {what} without requests"
            )
