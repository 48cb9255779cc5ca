"""What became of every version: the single source of truth for status and waits.

Follows the event bus, remembers the last state of each version, and of ended
versions only the newest few of each stream. (TensorFlow Serving:
core/servable_state_monitor.h, which remembers all of them for ever.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfs.core.clock import Clock
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState


class ServableStateMonitor:
    """Remembers states. Thread-safe; readers get snapshots and never block on loads.

    Args:
        bus: What it follows, from now on.
        max_ended: How many ended versions of a stream it remembers.
        max_log_events: Length of the event log; 0 keeps none.

    """

    def __init__(
        self,
        bus: EventBus[ServableState],
        clock: Clock,
        *,
        max_ended: int = 10,
        max_log_events: int = 0,
    ) -> None:
        self._clock = clock
        self._max_ended = max_ended
        # Guards the fields below and wakes waiters. Leaf: taken while the bus
        # delivers, and nothing is called under it.
        self._changed = threading.Condition()
        self._states: dict[str, dict[int, ServableState]] = {}
        self._log: deque[EventAndTime[ServableState]] = deque(maxlen=max_log_events)
        self._subscription = bus.subscribe(self._take)

    def close(self) -> None:
        """Stops following; what is known stays readable."""
        self._subscription.close()

    def state(self, servable_id: ServableId) -> ServableState | None:
        """Returns the last state of a version, None if it is not known."""
        with self._changed:
            return self._states.get(servable_id.name, {}).get(servable_id.version)

    def version_states(self, name: str) -> Sequence[ServableState]:
        """Returns the states of a stream's versions, highest version first."""
        with self._changed:
            states = list(self._states.get(name, {}).values())
        return sorted(states, key=lambda state: -state.id.version)

    def all_states(self) -> Mapping[str, Sequence[ServableState]]:
        """Returns the states of every stream, highest version first."""
        with self._changed:
            names = list(self._states)
        return {name: self.version_states(name) for name in names}

    def log(self) -> Sequence[EventAndTime[ServableState]]:
        """Returns the latest events, oldest first."""
        with self._changed:
            return list(self._log)

    def wait_until(self, names: Sequence[str], deadline_s: float | None = None) -> bool:
        """Blocks until each stream has an available version, or only ended ones.

        Returns:
            Whether every one has an available version; False at the deadline too.

        """
        with self._changed:
            while not all(self._has_settled_locked(name) for name in names):
                if deadline_s is not None and self._clock.now() >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
            return all(self._is_available_locked(name) for name in names)

    def _take(self, event: EventAndTime[ServableState]) -> None:
        state = event.event
        if not state.since_s:
            state = replace(state, since_s=event.time_s)
        with self._changed:
            versions = self._states.setdefault(state.id.name, {})
            versions[state.id.version] = state
            ended = sorted(
                version
                for version, each in versions.items()
                if each.manager_state is ManagerState.END
            )
            for version in ended[: max(0, len(ended) - self._max_ended)]:
                del versions[version]
            if self._log.maxlen:
                self._log.append(event)
            self._changed.notify_all()

    def _is_available_locked(self, name: str) -> bool:
        return any(
            state.manager_state is ManagerState.AVAILABLE
            for state in self._states.get(name, {}).values()
        )

    def _has_settled_locked(self, name: str) -> bool:
        states = self._states.get(name, {}).values()
        return self._is_available_locked(name) or (
            bool(states)
            and all(state.manager_state is ManagerState.END for state in states)
        )
