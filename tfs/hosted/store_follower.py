"""Follows a fleet's store, and says when something changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from tfs.core.errors import ServingError
from tfs.hosted.fleet_state import FleetState, Snapshot

log = logging.getLogger(__name__)

_TICK_S: Final = 0.2
_PAUSE_S: Final = 1.0  # after a store that could not be read


class StoreFollower:
    """Reads along on a thread of its own from ``start`` to ``close``.

    Args:
        state: The fleet.
        on_state: Called on that thread with the state, after each change and at least
            five times a second while the store can be read; must not block.

    """

    def __init__(self, state: FleetState, on_state: Callable[[Snapshot], None]) -> None:
        self._state = state
        self._on_state = on_state
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="follow-store", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self) -> None:
        """Ends soon; idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        revision = 0
        while not self._stopping.is_set():
            try:
                self._state.store.wait(revision, _TICK_S)
                snapshot = self._state.read()
                revision = snapshot.revision
                self._on_state(snapshot)
            except ServingError:
                # The synchronizer says in the log what is wrong with the store.
                self._stopping.wait(_PAUSE_S)
            except Exception:
                log.exception("event=store_follower_failed")
                self._stopping.wait(_PAUSE_S)
