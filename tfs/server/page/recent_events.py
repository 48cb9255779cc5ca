"""The latest changes of versions' states, for the page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from tfs.core.event_bus import EventAndTime
from tfs.core.servable_state import ServableState

_MAX_KEPT: Final = 500


class RecentEvents:
    """Keeps the latest events of a bus. Thread-safe."""

    def __init__(self) -> None:
        self._events: deque[EventAndTime[ServableState]] = deque(maxlen=_MAX_KEPT)

    def note(self, event: EventAndTime[ServableState]) -> None:
        """Takes an event; for ``EventBus.subscribe``."""
        self._events.append(event)

    def latest(
        self, num: int, model: str | None = None
    ) -> Sequence[EventAndTime[ServableState]]:
        """Returns the latest events, of one model or of all; the newest first."""
        found = [
            each
            for each in reversed(self._events.copy())
            if model is None or each.event.id.name == model
        ]
        return found[:num]
