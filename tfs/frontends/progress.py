"""The one rule for what waits for its client: it moves by 64 KB in time, or it ends."""

from __future__ import annotations

from typing import Final

_LEAST_BYTES: Final = 65_536


class Progress:
    """How far something has come, and since when it is no further. Loop-confined."""

    __slots__ = ("_num_bytes", "_since_s")

    def __init__(self, num_bytes: int, now_s: float) -> None:
        self._num_bytes = num_bytes
        self._since_s = now_s

    def move(self, num_bytes: int, now_s: float) -> float:
        """Notes how far it has come; returns for how long it made no progress."""
        if num_bytes - self._num_bytes >= _LEAST_BYTES:
            self._num_bytes = num_bytes
            self._since_s = now_s
        return now_s - self._since_s
