"""Publishes the states of versions: one life each, though it may have two harnesses.

While changed files replace what is served, a version has two harnesses: the elder,
which serves, and an heir of a higher generation. To observers the version stays
AVAILABLE. What happens to the heir before it serves is published as a note, and what
happens to the elder afterwards is not published at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from managers.harness_state import END_STATES, HarnessState
from managers.managed_version import ManagedVersion
from managers.serving_map import Handle, ServingMap
from tfs.core.clock import Clock
from tfs.core.errors import ServingError
from tfs.core.event_bus import EventBus
from tfs.core.servable_state import ManagerState, ServableState

_STATES: Final = {
    HarnessState.NEW: ManagerState.START,
    HarnessState.LOAD_REQUESTED: ManagerState.START,
    HarnessState.LOAD_APPROVED: ManagerState.START,
    HarnessState.LOADING: ManagerState.LOADING,
    HarnessState.READY: ManagerState.AVAILABLE,
    HarnessState.UNLOAD_REQUESTED: ManagerState.AVAILABLE,
    HarnessState.QUIESCING: ManagerState.UNLOADING,
    HarnessState.QUIESCED: ManagerState.UNLOADING,
    HarnessState.UNLOADING: ManagerState.UNLOADING,
}
"""The state that was published last, for a version that is not over."""


class VersionEvents:
    """Publishes the states of a manager's versions, in order. Thread-safe.

    Args:
        bus: Where they are published; None publishes nothing.
        clock: For the time of each state.
        siblings: Returns the other harnesses of the same version; quick, takes no
            lock.

    """

    def __init__(
        self,
        bus: EventBus[ServableState] | None,
        clock: Clock,
        siblings: Callable[[ManagedVersion], Sequence[ManagedVersion]],
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._siblings = siblings
        # Orders the events of a version that has two harnesses, and guards
        # ``published`` and ``handle`` of all versions. Held while publishing; ranks
        # before the bus's lock.
        self._publishing = threading.Lock()

    def start(self, managed: ManagedVersion) -> None:
        """Publishes START, and END if it has failed already, unless there is an elder.

        The heir of an unloading version starts when that is gone, or when nobody waits
        for it any more. The heir of a serving version shows only as a note.
        """
        with self._publishing:
            if managed.is_started or managed.is_serving:
                return
            elders = _elders(managed, self._siblings(managed))
            if not elders:
                managed.is_started = True
                self._replace_elders_locked(managed)
            is_over = managed.harness.is_over
            if not elders or not is_over:
                self._publish_locked(managed, ManagerState.START)
            if is_over:
                self._publish_locked(managed, ManagerState.END)

    def start_heirs(self, managed: ManagedVersion) -> None:
        """Starts the heirs of a version that is gone, or that nobody waits for any more."""
        for heir in self._siblings(managed):
            self.start(heir)

    def make_available(
        self, managed: ManagedVersion, handle: Handle, serving_map: ServingMap
    ) -> None:
        """Lets a version be requested, then publishes AVAILABLE."""
        with self._publishing:
            managed.handle = handle
            # Beside an elder that serves, START was not published.
            managed.is_started = True
            serving_map.publish(handle)
            self._replace_elders_locked(managed)
            self._publish_locked(managed, ManagerState.AVAILABLE)

    def publish(self, managed: ManagedVersion, manager_state: ManagerState) -> None:
        """Publishes that a version entered a state, as seen from outside."""
        with self._publishing:
            self._publish_locked(managed, manager_state)

    def annotate(
        self, managed: ManagedVersion, note: str | None, resident_bytes: int | None
    ) -> None:
        """Publishes what was found out about a version; None leaves that part as it is."""
        with self._publishing:
            known = managed.note, managed.resident_bytes
            if note is not None:
                managed.note = note
            if resident_bytes is not None:
                managed.resident_bytes = resident_bytes
            if known != (managed.note, managed.resident_bytes):
                self._republish_locked(managed)

    def report_error(self, managed: ManagedVersion, error: ServingError | None) -> None:
        """Publishes that a serving version has a fault; None takes that back."""
        with self._publishing:
            managed.fault = error
            self._republish_locked(managed)

    def end_standing_in(self, managed: ManagedVersion) -> None:
        """Publishes that a version is no longer a stand-in for its own new contents."""
        with self._publishing:
            if managed.heir_error is not None:
                managed.heir_error = None
                self._republish_locked(managed)

    def note_late(self, managed: ManagedVersion, *, is_late: bool) -> None:
        """Publishes the current state again, and whether it takes too long."""
        with self._publishing:
            state = managed.harness.state  # read once, as its pool thread may change it
            has_come = state in END_STATES or managed.is_serving
            managed.harness.is_late = is_late and not has_come
            if has_come:
                return
            self._publish_locked(managed, _STATES[state])

    def _republish_locked(self, managed: ManagedVersion) -> None:
        # LOADING: it can be requested already, and its manager has yet to move it to
        # READY.
        is_ready = managed.harness.state in (HarnessState.LOADING, HarnessState.READY)
        if not (managed.is_serving and is_ready):
            return
        generation = managed.harness.generation
        heirs = [
            m
            for m in self._siblings(managed)
            if m.harness.generation > generation and m.harness.is_aspired
        ]
        if heirs and self._bus is not None:
            # Notes about the old contents must not hide how the new ones do.
            heir = heirs[-1].harness
            self._bus.publish(managed.state_beside(heir, self._clock.wall_s()))
            return
        self._publish_locked(managed, ManagerState.AVAILABLE)

    def _replace_elders_locked(self, managed: ManagedVersion) -> None:
        for other in self._siblings(managed):
            if other.harness.generation < managed.harness.generation:
                other.is_replaced = True

    def _publish_locked(
        self, managed: ManagedVersion, manager_state: ManagerState
    ) -> None:
        managed.is_over = manager_state is ManagerState.END
        if self._bus is None or managed.is_replaced:
            return
        wall_s = self._clock.wall_s()
        siblings = self._siblings(managed)  # usually none
        elders = _elders(managed, siblings) if siblings else ()
        if elders and manager_state is not ManagerState.AVAILABLE:
            for elder in elders:
                if not managed.harness.is_aspired:
                    # It was given up, perhaps for still newer contents. How it ends is
                    # no fault of the version that serves. If the elder ends too, what
                    # comes next is published.
                    if elder.harness.is_aspired:
                        self._republish_locked(elder)
                elif elder.is_serving:
                    self._bus.publish(elder.state_beside(managed.harness, wall_s))
            return
        if not (managed.is_started or managed.harness.is_aspired):
            # No observer knows of it: it was to replace a version that is gone by now.
            return
        self._bus.publish(managed.state(manager_state, wall_s))


def _elders(
    managed: ManagedVersion, siblings: Sequence[ManagedVersion]
) -> list[ManagedVersion]:
    """Returns the elders that a version has to wait for."""
    generation = managed.harness.generation
    return [
        m
        for m in siblings
        if m.harness.generation < generation
        and not m.is_abandoned
        and not (m.is_over or m.is_replaced)
    ]
