"""Which loads may begin for the memory that there is, and which of them wait."""

from __future__ import annotations

from collections import deque

from managers.managed_version import ManagedVersion
from managers.resource_tracker import ResourceTracker
from tfs.core.errors import ResourceExhausted, ServingError
from tfs.core.resources import ResourceAllocation


class LoadAdmission:
    """Reserves for loads in order, and counts what executes.

    A load that does not fit now waits while anything executes that may make room;
    behind it all later ones wait, or a big model would wait for ever. One that could
    not fit an empty machine, or finds no room while nothing executes, fails.

    Not thread-safe: its manager's lock guards it, but for ``correct`` and ``release``,
    which belong to whoever moves that version on.

    Args:
        tracker: What is reserved from; None lets every load through.

    """

    def __init__(self, tracker: ResourceTracker | None) -> None:
        self._tracker = tracker
        self._deferred: deque[ManagedVersion] = deque()
        self.num_executing = 0
        """Loads that were admitted and unloads, not ended yet."""

    @property
    def num_deferred(self) -> int:
        """Loads that wait for memory."""
        return len(self._deferred)

    def is_deferred(self, managed: ManagedVersion) -> bool:
        """Whether a load waits for memory."""
        return managed in self._deferred

    def admit(self, managed: ManagedVersion) -> bool:
        """Returns whether a load may go on; one that may not waits, or has failed."""
        if managed.is_executing:  # taken off the queue by take_decided()
            return True
        if managed.harness.is_over:
            return False
        if self._deferred and self._can_ever_fit(managed):
            self._deferred.append(managed)
            return False
        return self._decide(managed)

    def take_decided(self) -> list[ManagedVersion]:
        """Takes loads off the head of the queue: those that fit, and those refused."""
        decided = []
        while self._deferred:
            managed = self._deferred.popleft()
            if not self._decide(managed) and not managed.harness.is_over:
                # It went to the end of the queue; it keeps its place at the head.
                self._deferred.pop()
                self._deferred.appendleft(managed)
                break
            decided.append(managed)
        return decided

    def give_up(self, managed: ManagedVersion) -> None:
        """Takes a load out of the queue if it waits there."""
        if managed in self._deferred:
            self._deferred.remove(managed)

    def begin(self, managed: ManagedVersion) -> None:
        """Counts a load or an unload as executing."""
        managed.is_executing = True
        self.num_executing += 1

    def end(self, managed: ManagedVersion) -> None:
        """Counts it no more; idempotent."""
        if managed.is_executing:
            managed.is_executing = False
            self.num_executing -= 1

    def correct(self, managed: ManagedVersion, estimate: ResourceAllocation) -> None:
        """Reserves what a loaded version takes in the place of what was expected."""
        if self._tracker is not None and managed.reserved is not None:
            managed.reserved = self._tracker.replace(managed.reserved, estimate)

    def release(self, managed: ManagedVersion) -> None:
        """Gives back what was reserved for a version; idempotent."""
        reserved, managed.reserved = managed.reserved, None
        if reserved is not None and self._tracker is not None:
            self._tracker.release(reserved)

    def _decide(self, managed: ManagedVersion) -> bool:
        """Reserves and counts the load as executing; else defers it or fails it."""
        wanted = managed.harness.estimate or ResourceAllocation()
        if self._tracker is not None:
            try:
                fits = self._tracker.reserve(wanted)
            except ServingError as error:
                managed.harness.fail(error)
                return False
            if not fits:
                if self.num_executing and self._can_ever_fit(managed):
                    self._deferred.append(managed)
                    return False
                managed.harness.fail(_no_room(managed, wanted, self._tracker))
                return False
            managed.reserved = wanted
        self.begin(managed)
        return True

    def _can_ever_fit(self, managed: ManagedVersion) -> bool:
        wanted = managed.harness.estimate or ResourceAllocation()
        try:
            return self._tracker is None or self._tracker.can_ever_fit(wanted)
        except ServingError:
            return False


def _no_room(
    managed: ManagedVersion, wanted: ResourceAllocation, tracker: ResourceTracker
) -> ServingError:
    return ResourceExhausted(
        f"Insufficient resources to load servable {managed.harness.id}: it takes "
        f"{wanted.describe()}, in use are {tracker.used.describe()} of "
        f"{tracker.total.describe()}; unload something or raise the limit"
    )
