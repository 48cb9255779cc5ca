"""Which loads may begin for the memory that there is, and which of them wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from managers.loader_harness import HarnessState
from managers.managed_version import ManagedVersion
from managers.resource_tracker import ResourceTracker
from tfs.core.errors import ResourceExhausted, ServingError
from tfs.core.resources import ResourceAllocation


class LoadAdmission:
    """Reserves for loads in order, and counts what executes.

    A load that does not fit now waits while anything executes that may make room;
    behind it all later ones wait, or a big model would wait for ever. One that could
    not fit an empty machine, or finds no room while nothing executes, fails; in the latter
    case it is marked as refused, and its manager may try again when others have ended.

    Room may be promised to a load that is to come: what is unloaded for it is not for
    others, who wait until it was decided on.

    Not thread-safe: its manager's lock guards it, but for ``correct`` and ``release``,
    which belong to whoever moves that version on.

    Args:
        tracker: What is reserved from; None lets every load through.

    """

    def __init__(self, tracker: ResourceTracker | None) -> None:
        self._tracker = tracker
        self._deferred: deque[ManagedVersion] = deque()
        # By the version that it was promised to: what goes for it.
        self._promises: dict[ManagedVersion, Sequence[ManagedVersion]] = {}
        self.num_executing = 0
        """Loads that were admitted and unloads, not ended yet."""
        self.may_have_made_room = False
        """Whether one ended, or who comes first left, since this was last set to False."""

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
        # Who was promised room waits behind nobody: others wait for just that.
        is_promised = managed in self._promises
        must_queue = self._deferred and not is_promised and self._can_ever_fit(managed)
        if not must_queue and self._decide(managed):
            return managed.is_executing
        if is_promised:
            self._deferred.appendleft(managed)
        else:
            self._deferred.append(managed)
        return False

    def take_decided(self) -> list[ManagedVersion]:
        """Takes loads off the head of the queue: those that fit, and those refused."""
        self._forget_promises()
        decided = []
        while self._deferred and self._decide(self._deferred[0]):
            decided.append(self._deferred.popleft())
            self.may_have_made_room = True
        return decided

    def give_up(self, managed: ManagedVersion) -> None:
        """Takes a load out of the queue if it waits there."""
        if managed in self._deferred:
            self._deferred.remove(managed)
            self.may_have_made_room = True

    def begin(self, managed: ManagedVersion) -> None:
        """Counts a load or an unload as executing."""
        managed.is_executing = True
        self.num_executing += 1

    def end(self, managed: ManagedVersion) -> None:
        """Counts it no more; idempotent."""
        if managed.is_executing:
            managed.is_executing = False
            self.num_executing -= 1
            self.may_have_made_room = True

    def correct(self, managed: ManagedVersion, estimate: ResourceAllocation) -> None:
        """Reserves what a loaded version takes in the place of what was expected."""
        if self._tracker is not None and managed.reserved is not None:
            managed.reserved = self._tracker.replace(managed.reserved, estimate)

    def release(self, managed: ManagedVersion) -> None:
        """Gives back what was reserved for a version; idempotent."""
        reserved, managed.reserved = managed.reserved, None
        if reserved is not None and self._tracker is not None:
            self._tracker.release(reserved)

    @property
    def has_limit(self) -> bool:
        """Whether there is anything to reserve from."""
        return self._tracker is not None

    def has_room(
        self, managed: ManagedVersion, going: Sequence[ManagedVersion] = ()
    ) -> bool:
        """Whether a load would be let in now if ``going`` were unloaded.

        Not while others wait: they come first. What cannot be known counts as room.
        """
        wanted = managed.harness.estimate
        if wanted is None:
            return True
        try:
            return not self._deferred and self._fits_with(managed, wanted, going)
        except ServingError:
            return True  # its load will tell

    def promise(self, managed: ManagedVersion, going: Sequence[ManagedVersion]) -> bool:
        """Keeps room for a load that is to come, if it fits once ``going`` are gone."""
        if not self.has_room(managed, going):
            return False
        self._promises[managed] = tuple(going)
        return True

    def _fits_with(
        self,
        managed: ManagedVersion,
        wanted: ResourceAllocation,
        going: Sequence[ManagedVersion] = (),
    ) -> bool:
        """Whether a load fits once ``going`` are gone and all promises are kept."""
        if self._tracker is None:
            return True
        self._forget_promises()
        leaving = set(going)
        for heir, elders in self._promises.items():
            if heir is not managed:
                wanted += heir.harness.estimate or ResourceAllocation()
                leaving.update(elders)
        freed = [each.reserved for each in leaving if each.reserved is not None]
        return self._tracker.would_fit(wanted, freed)

    def refuse(self, managed: ManagedVersion, going: Sequence[ManagedVersion]) -> None:
        """Fails a load for want of memory before it was asked for.

        Args:
            managed: Would not fit even if others were unloaded for it.
            going: Those; they stay.

        """
        assert self._tracker is not None
        wanted = managed.harness.estimate or ResourceAllocation()
        managed.is_refused = self._can_ever_fit(managed)
        managed.harness.fail(no_room(managed, wanted, self._tracker, going))

    def _forget_promises(self) -> None:
        """Drops promises to whom nobody wants any more, or was decided on."""
        states = (HarnessState.NEW, HarnessState.LOAD_REQUESTED)
        for heir in list(self._promises):
            if not heir.harness.is_aspired or heir.harness.state not in states:
                del self._promises[heir]
                self.may_have_made_room = True

    def _decide(self, managed: ManagedVersion) -> bool:
        """Reserves for a load and counts it as executing, or fails it.

        Returns False where it is to wait: neither was done.
        """
        wanted = managed.harness.estimate or ResourceAllocation()
        if self._tracker is not None:
            try:
                fits = self._fits_with(managed, wanted) and self._tracker.reserve(
                    wanted
                )
            except ServingError as error:
                managed.harness.fail(error)
                return True
            if not fits:
                # Who was promised room waits for no promise: two would wait for ever.
                is_awaited = self.num_executing or (
                    self._promises and managed not in self._promises
                )
                if is_awaited and self._can_ever_fit(managed):
                    return False
                managed.is_refused = self._can_ever_fit(managed)
                managed.harness.fail(no_room(managed, wanted, self._tracker))
                return True
            managed.reserved = wanted
        self.begin(managed)
        return True

    def _can_ever_fit(self, managed: ManagedVersion) -> bool:
        wanted = managed.harness.estimate or ResourceAllocation()
        try:
            return self._tracker is None or self._tracker.can_ever_fit(wanted)
        except ServingError:
            return False


def no_room(
    managed: ManagedVersion,
    wanted: ResourceAllocation,
    tracker: ResourceTracker,
    going: Sequence[ManagedVersion] = (),
) -> ServingError:
    """Returns the refusal of a load, with the numbers and what to do."""
    cure = "unload something or raise the limit"
    if managed.is_refused:
        cure += "; it is tried again when memory is given back"
    kept = ", ".join(str(each.harness.id.version) for each in going)
    stays = f"without version {kept} too, which therefore stays; " if kept else ""
    return ResourceExhausted(
        f"Insufficient resources to load servable {managed.harness.id}: it takes "
        f"{wanted.describe()}, in use are {tracker.used.describe()} of "
        f"{tracker.total.describe()}; {stays}{cure}"
    )
