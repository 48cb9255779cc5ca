"""The one place where everybody can read every version's published state.

Status, CLI and logs read it and wait on it, never on the managers.
(TensorFlow Serving: core/servable_state_monitor.h.)
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState, ServableState

log = logging.getLogger(__name__)

VersionStates = Sequence[ServableState]
"""The states of one servable's versions, highest version first."""

ReachedCallback = Callable[[bool, Mapping[ServableId, ManagerState]], None]
"""Takes whether every request was satisfied, and the state of each request's
version."""


@dataclass(frozen=True, slots=True)
class StateMonitorOptions:
    """How much the monitor remembers. Immutable.

    Attributes:
        max_num_log_events: Events ``bounded_log`` keeps; 0 keeps none.
        max_num_ended_per_name: How many ended versions are kept per servable, the
            latest ones; 0 keeps none. Without a limit, a server that swaps every minute
            would grow, and so would its GetModelStatus.
        max_num_ended_names: How many servables of which every version has ended are
            kept.

    """

    max_num_log_events: int = 0
    max_num_ended_per_name: int = 16
    max_num_ended_names: int = 1024

    def __post_init__(self) -> None:
        for name in (
            "max_num_log_events",
            "max_num_ended_per_name",
            "max_num_ended_names",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is negative: {getattr(self, name)}")


class Waiter:
    """A notification that was asked for and has not come yet. Thread-safe."""

    def __init__(
        self,
        monitor: ServableStateMonitor,
        requests: Sequence[ServableRequest],
        goal: ManagerState,
        callback: ReachedCallback,
    ) -> None:
        self._monitor = monitor
        self.goal = goal
        self.callback = callback
        # Guarded by the monitor's lock. There is a list for each name, so that an event
        # costs time only for those that wait for its name.
        self.waiting: dict[str, list[ServableRequest]] = {}
        for request in requests:
            self.waiting.setdefault(request.name, []).append(request)
        self.reached_all = True
        self.states: dict[ServableId, ManagerState] = {}

    def close(self) -> None:
        """Cancels the notification; one under way may still come. Idempotent."""
        self._monitor.forget_waiter(self)


class ServableStateMonitor:
    """Keeps the last state of every version. Thread-safe.

    Callbacks run on the thread that published the event, after the monitor has taken
    it in, outside the monitor's lock but within the bus's: they must be quick and
    neither publish nor subscribe.
    """

    def __init__(
        self,
        bus: EventBus[ServableState],
        *,
        clock: Clock | None = None,
        options: StateMonitorOptions | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._options = options or StateMonitorOptions()
        # Guards every field below. Ranks after the bus's; callbacks are called
        # outside it. A name's states are replaced, never changed, so that who asks for
        # one name takes no lock.
        self._changed = threading.Condition()
        self._states: dict[str, Mapping[int, ServableState]] = {}
        self._ended: dict[str, dict[int, None]] = {}
        self._ended_names: dict[str, None] = {}
        self._log: deque[EventAndTime[ServableState]] = deque(
            maxlen=self._options.max_num_log_events
        )
        self._waiters: list[Waiter] = []
        self._listeners: list[Callable[[EventAndTime[ServableState]], None]] = []
        self._subscription = bus.subscribe(self._take)

    def close(self) -> None:
        """Stops following the bus; what is known stays readable. Idempotent."""
        self._subscription.close()

    def state(self, servable_id: ServableId) -> ServableState | None:
        """Returns the version's last state; None if it was never seen or forgotten."""
        return self._states.get(servable_id.name, {}).get(servable_id.version)

    def version_states(self, name: str) -> VersionStates:
        """Returns the states of one servable, highest version first."""
        by_version = self._states.get(name)
        # Of ten thousand models that are loaded on demand most have none.
        return _descending(by_version) if by_version else []

    def available_versions(self, name: str) -> frozenset[int]:
        """Returns the versions of one servable that can be requested."""
        available = ManagerState.AVAILABLE
        return frozenset(
            version
            for version, state in self._states.get(name, {}).items()
            if state.manager_state is available
        )

    def all_states(self) -> Mapping[str, VersionStates]:
        """Returns everything known."""
        with self._changed:
            return {name: _descending(by) for name, by in self._states.items()}

    def live_states(self) -> Mapping[str, VersionStates]:
        """Returns every version that has not ended."""
        end = ManagerState.END
        found = {
            name: [each for each in states if each.manager_state is not end]
            for name, states in self.all_states().items()
        }
        return {name: states for name, states in found.items() if states}

    def bounded_log(self) -> list[EventAndTime[ServableState]]:
        """Returns the last events, oldest first."""
        with self._changed:
            return list(self._log)

    def forget_ended(self, name: str | None = None) -> None:
        """Drops the states of ended versions, of one servable or of all."""
        with self._changed:
            for each in [name] if name is not None else list(self._ended):
                ended = self._ended.pop(each, {})
                left = {
                    version: state
                    for version, state in self._states.get(each, {}).items()
                    if version not in ended
                }
                if left:
                    self._states[each] = left
                else:
                    self._drop_name_locked(each)

    def listen(
        self, callback: Callable[[EventAndTime[ServableState]], None]
    ) -> Callable[[], None]:
        """Calls ``callback`` after every event; returns a function that ends that."""
        with self._changed:
            self._listeners.append(callback)

        def stop() -> None:
            with self._changed:
                if callback in self._listeners:
                    self._listeners.remove(callback)

        return stop

    def notify_when_reached(
        self,
        requests: Sequence[ServableRequest],
        goal: ManagerState,
        callback: ReachedCallback,
    ) -> Waiter:
        """Calls ``callback`` once, when every request has reached ``goal`` or ended.

        A request for a specific version is decided when that version is in ``goal`` or
        END. A request without a version is decided when any version of the name is in
        ``goal``, or all of them have ended. If there is nothing to wait for, or all
        requests are decided already, the callback runs on this thread before this
        returns.
        """
        waiter = Waiter(self, requests, goal, callback)
        with self._changed:
            for name in list(waiter.waiting):
                self._advance_locked(waiter, name)
            done = not waiter.waiting
            if not done:
                self._waiters.append(waiter)
        if done:
            callback(waiter.reached_all, waiter.states)
        return waiter

    def wait_until_reached(
        self,
        requests: Sequence[ServableRequest],
        goal: ManagerState,
        deadline_s: float | None = None,
    ) -> tuple[bool, Mapping[ServableId, ManagerState]]:
        """Blocks until every request has reached ``goal`` or ended, or the deadline.

        Args:
            requests: See :meth:`notify_when_reached`.
            goal: The state to wait for.
            deadline_s: When to give up, by the monitor's clock; None waits for ever.

        Returns:
            Whether all reached the goal, and the states that decided the requests.
            After the deadline: False, and the states of those that were decided.

        """
        outcome: list[tuple[bool, Mapping[ServableId, ManagerState]]] = []

        def done(reached: bool, states: Mapping[ServableId, ManagerState]) -> None:
            with self._changed:
                outcome.append((reached, states))
                self._changed.notify_all()

        waiter = self.notify_when_reached(requests, goal, done)
        with self._changed:
            while not outcome:
                if deadline_s is not None and self._clock.now() >= deadline_s:
                    break
                self._clock.wait(self._changed, deadline_s)
            if outcome:
                return outcome[0]
            states = dict(waiter.states)
        waiter.close()
        return False, states

    def forget_waiter(self, waiter: Waiter) -> None:
        """Drops ``waiter``; see :meth:`Waiter.close`."""
        with self._changed:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _take(self, published: EventAndTime[ServableState]) -> None:
        state = published.event
        name, version = state.id.name, state.id.version
        due: list[Waiter] = []
        with self._changed:
            self._states[name] = {**self._states.get(name, {}), version: state}
            self._log.append(published)
            for waiter in self._waiters:
                if name in waiter.waiting:
                    self._advance_locked(waiter, name)
                    if not waiter.waiting:
                        due.append(waiter)
            for waiter in due:
                self._waiters.remove(waiter)
            self._forget_old_locked(state)
            listeners = list(self._listeners)
        for waiter in due:
            _call(waiter.callback, waiter.reached_all, waiter.states)
        for listener in listeners:
            _call(listener, published)

    def _advance_locked(self, waiter: Waiter, name: str) -> None:
        left = []
        for request in waiter.waiting[name]:
            decided = self._decide_locked(request, waiter.goal)
            if decided is None:
                left.append(request)
                continue
            waiter.reached_all &= decided.manager_state is waiter.goal
            waiter.states[decided.id] = decided.manager_state
        if left:
            waiter.waiting[name] = left
        else:
            del waiter.waiting[name]

    def _decide_locked(
        self, request: ServableRequest, goal: ManagerState
    ) -> ServableState | None:
        """Returns the state that satisfies or fails ``request``; None: wait on."""
        by_version = self._states.get(request.name, {})
        if request.version is not None:
            state = by_version.get(request.version)
            if state and state.manager_state in (goal, ManagerState.END):
                return state
            return None
        newest_first = _descending(by_version)
        for state in newest_first:
            if state.manager_state is goal:
                return state
        if newest_first and all(
            state.manager_state is ManagerState.END for state in newest_first
        ):
            return newest_first[0]
        return None

    def _forget_old_locked(self, state: ServableState) -> None:
        """Notes whether the version ended, and drops what ended long ago."""
        name, version = state.id.name, state.id.version
        by_version = dict(self._states[name])
        ended = self._ended.setdefault(name, {})
        ended.pop(version, None)
        if state.manager_state is ManagerState.END:
            ended[version] = None  # a dict keeps the order: the oldest is first
        while len(ended) > self._options.max_num_ended_per_name:
            oldest = next(iter(ended))
            del ended[oldest], by_version[oldest]
        self._states[name] = by_version
        self._ended_names.pop(name, None)
        if len(ended) == len(by_version):
            self._ended_names[name] = None
        while len(self._ended_names) > self._options.max_num_ended_names:
            self._drop_name_locked(next(iter(self._ended_names)))
        if name in self._states and not by_version:
            self._drop_name_locked(name)

    def _drop_name_locked(self, name: str) -> None:
        self._states.pop(name, None)
        self._ended.pop(name, None)
        self._ended_names.pop(name, None)


def _descending(by_version: Mapping[int, ServableState]) -> list[ServableState]:
    return [by_version[version] for version in sorted(by_version, reverse=True)]


def _call(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        log.exception("event=state_callback_failed")
