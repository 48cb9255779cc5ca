"""Bounds the memory that requests take beyond what was sent.

One value can stand for all elements of a tensor, and padding and defaults are added: so
a request of forty bytes may take as much memory as the codec allows for any. This
limits what all requests take together.
"""

from __future__ import annotations

import threading
from typing import Final

from tfs.core import stat_names
from tfs.core.errors import Unavailable
from tfs.core.stats import Stats

MAX_FILLED_BYTES: Final = 256 << 20
"""What all requests in flight may take together beyond what was sent of them."""

RETRY_AFTER_S: Final = 0.25

_UNCOUNTED_BYTES: Final = 1 << 14  # of one request: ten thousand of them take 160 MB


class FillLimit:
    """Counts the memory taken in this way on a server. Thread-safe.

    Args:
        max_bytes: How much there is.
        stats: Where refusals are counted.

    """

    def __init__(self, max_bytes: int, stats: Stats) -> None:
        # Guards _free_bytes; leaf: nothing is called under it.
        self._lock = threading.Lock()
        self._free_bytes = max_bytes
        self._refused = stats.counter(stat_names.REQUESTS_REFUSED, limit="fill")

    def take(self, num_bytes: int) -> None:
        """Takes room; the caller owes ``give_back``.

        Raises:
            Unavailable: There is not as much now; nothing was taken.

        """
        with self._lock:
            is_taken = num_bytes <= self._free_bytes
            if is_taken:
                self._free_bytes -= num_bytes
        if not is_taken:
            self._refused.add()
            raise Unavailable(
                f"there is no room now for the {num_bytes} bytes that this request takes "
                "beyond what was sent of it; send all values, or retry after a pause",
                retry_after_s=RETRY_AFTER_S,
            )

    def give_back(self, num_bytes: int) -> None:
        """Gives room back."""
        with self._lock:
            self._free_bytes += num_bytes


class FilledRoom:
    """What one request has taken. Passed from thread to thread with its request."""

    __slots__ = ("_limit", "_num_bytes")

    def __init__(self, limit: FillLimit) -> None:
        self._limit = limit
        self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Takes room, once, for what was just made and is not kept yet.

        Raises:
            Unavailable: There is none now; nothing was taken.

        """
        if num_bytes >= _UNCOUNTED_BYTES:
            self._limit.take(num_bytes)
            self._num_bytes = num_bytes

    def leave(self) -> None:
        """Gives back what was taken; idempotent."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num_bytes:
            self._limit.give_back(num_bytes)
