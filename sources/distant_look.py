"""A look at a place that may not answer, taken by a thread that nobody waits for.

If a look is asked for again while it is under way, no second one begins, because a dead
mount would take a thread for each. The look is marked as outdated, and taken once more
after its end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from sources.storage_threads import PATIENCE_S, StorageCall, StorageThreads

log = logging.getLogger(__name__)

T = TypeVar("T")


class DistantLook(Generic[T]):
    """At most one look at a time, and the result of the last one. Never blocks.

    The threads that look may call it at any time; ``ask``, ``fetch`` and ``begin`` are
    called by one other thread at a time, in this order.

    Args:
        storage: The threads that look; not its own.
        on_taken: Called on one of them when there is something to ``fetch``.

    """

    def __init__(self, storage: StorageThreads, on_taken: Callable[[], None]) -> None:
        self._storage = storage
        self._on_taken = on_taken
        # Guards every field below. Rank: before StorageThreads, after its owner's
        # locks. No look is taken and nothing is called under it.
        self._lock = threading.Lock()
        self._place = ""
        self._call: StorageCall | None = None
        self._shown: T | None = None
        self._is_outdated = False

    def ask(self) -> bool:
        """Whether a look is under way; its result counts as outdated from now on."""
        with self._lock:
            if self._call is None:
                return False
            self._is_outdated = True
            return True

    def fetch(self) -> tuple[T | None, bool]:
        """Returns the result of a look, once, and whether it is already outdated."""
        with self._lock:
            shown, self._shown = self._shown, None
            return shown, self._is_outdated

    def begin(
        self, place: str, look: Callable[[], T], patience_s: float = PATIENCE_S
    ) -> None:
        """Has ``look`` run on a thread for ``place``; does nothing while closing.

        Args:
            place: The store or mount that may not answer.
            look: Returns what went wrong, and does not raise.
            patience_s: How long to wait for it before it counts as late.

        """

        def run() -> None:
            shown = look()
            with self._lock:
                self._shown, self._call = shown, None
            self._on_taken()

        # The lock is held until the call is noted, because it may end at once.
        with self._lock:
            self._is_outdated = False
            self._place = place
            try:
                self._call = self._storage.submit(place, run, patience_s)
            except RuntimeError:  # closing
                log.debug("event=look_not_begun place=%s", place)

    @property
    def is_open(self) -> bool:
        """Whether a look is going on, or its result was not fetched yet."""
        with self._lock:
            return self._call is not None or self._shown is not None

    def late_s(self) -> float | None:
        """Returns for how long a late look has been waited for; None if it is not late."""
        with self._lock:
            place, call = self._place, self._call
        if call is None or not self._storage.is_late(place, call):
            return None
        return call.patience_s
