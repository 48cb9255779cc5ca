"""Which loads may begin with the available memory, and which have to wait.

This is the deciding phase of loads and unloads: short, one at a time, in the order of
requests. VersionExecutor carries out what was decided, several at a
time, and report back here when it is over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from managers.harness_state import HarnessState
from managers.managed_version import ManagedVersion
from managers.resource_tracker import ResourceTracker
from tfs.core.errors import ResourceExhausted, ServingError
from tfs.core.resources import ResourceAllocation

# Two loads of one model differ by some pages. So a version that takes up to 17/16 of
# what was expected was admitted rightly, even if the limit is as tight as the figures
# in the status.
_NOISE: Final = (17, 16)


class LoadAdmission:
    """Reserves memory for loads in order, and counts the loads and unloads in progress.

    A load that does not fit now waits while anything is in progress that may make room.
    All later loads wait behind it, because otherwise a big model would wait for ever. A
    load fails if it could not even fit an empty machine, or if there is no room while
    nothing is in progress. In the latter case it is marked as refused, and its manager
    may try again when others have ended.

    Room may be promised to a load that is still to come. The memory of what is unloaded
    for it is then not given to other loads; they wait until that load has been decided
    on.

    Thread-safe; never blocks.

    Args:
        tracker: What is reserved from; None lets every load through.

    """

    def __init__(self, tracker: ResourceTracker | None) -> None:
        self._tracker = tracker
        # Guards what follows, and is_executing and is_refused of every version. Under
        # it, reading where a load stands, reserving for it and giving it up are one
        # decision. Ranks before the locks of harnesses and of the tracker; no others
        # are taken under it.
        self._lock = threading.Lock()
        self._deferred: deque[ManagedVersion] = deque()
        # For each version that room was promised to, the versions that are unloaded for
        # it.
        self._promises: dict[ManagedVersion, Sequence[ManagedVersion]] = {}
        self._num_executing = 0
        self._may_have_made_room = False

    @property
    def has_limit(self) -> bool:
        """Whether memory is limited, so that loads reserve it."""
        return self._tracker is not None

    @property
    def num_executing(self) -> int:
        """How many loads that were admitted, and unloads, have not ended."""
        return self._num_executing

    @property
    def num_deferred(self) -> int:
        """Loads that wait for memory."""
        return len(self._deferred)

    def is_deferred(self, managed: ManagedVersion) -> bool:
        """Whether a load waits for memory."""
        with self._lock:
            return managed in self._deferred

    def take_room_made(self) -> bool:
        """Whether room may have been made since this was last called.

        That is so if something has ended, or if a load that others wait behind was
        decided on or given up.
        """
        with self._lock:
            was_made, self._may_have_made_room = self._may_have_made_room, False
            return was_made

    # -- loads and unloads ---------------------------------------------------------------

    def admit(self, managed: ManagedVersion) -> bool:
        """Returns whether a load may go on; if not, it waits or has failed."""
        with self._lock:
            if managed.is_executing:  # take_decided() has taken it off the queue
                return True
            if managed.harness.is_over:
                return False
            # A version that was promised room waits behind no other; others wait for
            # it.
            is_promised = managed in self._promises
            must_queue = (
                self._deferred and not is_promised and self._can_ever_fit(managed)
            )
            if not must_queue and self._decide_locked(managed):
                return managed.is_executing
            if is_promised:
                self._deferred.appendleft(managed)
            else:
                self._deferred.append(managed)
            return False

    def take_decided(self) -> list[ManagedVersion]:
        """Takes the loads off the head of the queue that fit or are refused."""
        with self._lock:
            self._forget_promises_locked()
            decided = []
            while self._deferred and self._decide_locked(self._deferred[0]):
                decided.append(self._deferred.popleft())
                self._may_have_made_room = True
            return decided

    def cancel(self, managed: ManagedVersion) -> bool:
        """Gives up a load, as its harness does; returns whether that ended it."""
        with (
            self._lock
        ):  # under the lock, or it might be admitted in between and never ended
            if not managed.harness.cancel():
                return False
            if managed in self._deferred:
                self._deferred.remove(managed)
                self._may_have_made_room = True
            return True

    def begin_unload(self, managed: ManagedVersion) -> None:
        """Counts an unload as executing."""
        with self._lock:
            self._begin_locked(managed)

    def end(self, managed: ManagedVersion) -> None:
        """Stops counting a load or an unload; idempotent."""
        with self._lock:
            if managed.is_executing:
                managed.is_executing = False
                self._num_executing -= 1
                self._may_have_made_room = True

    def correct(
        self, managed: ManagedVersion, estimate: ResourceAllocation
    ) -> ServingError | None:
        """Reserves what a loaded version really takes, instead of what was expected.

        Returns:
            None, or the reason why it may not stay: it takes clearly more than
            expected, and more than the others leave. Its load is then undone and ends;
            if it could fit at another time, it is marked as refused.

        """
        expected = managed.reserved
        if self._tracker is None or expected is None:
            return None
        with self._lock:
            managed.reserved = self._tracker.replace(expected, estimate)
            is_noise = not self._tracker.is_more(
                managed.reserved * _NOISE[1], expected * _NOISE[0]
            )
            if is_noise or not self._tracker.is_exceeded:
                return None
            beside = self._tracker.used_beside(managed.reserved)
            managed.is_refused = (
                self._can_ever_fit(managed) and managed.harness.can_be_renewed
            )
            return _too_large(managed, expected, beside, self._tracker.total)

    def release(self, managed: ManagedVersion) -> None:
        """Gives back what was reserved for a version; idempotent.

        Call it before ``end``, which announces that there may be room.
        """
        reserved, managed.reserved = managed.reserved, None
        if reserved is not None and self._tracker is not None:
            self._tracker.release(reserved)

    # -- before a load is asked for --------------------------------------------------------

    def promise(self, managed: ManagedVersion, going: Sequence[ManagedVersion]) -> bool:
        """Keeps room for a load that is to come, if it fits once ``going`` are unloaded.

        Nothing is promised while others wait, because they come first. A load of which
        it cannot be known whether it fits is taken to fit.
        """
        with self._lock:
            if not self._has_room_locked(managed, going):
                return False
            self._promises[managed] = tuple(going)
            return True

    def refuse(self, managed: ManagedVersion, going: Sequence[ManagedVersion]) -> None:
        """Fails a load for want of memory before it is asked for.

        Args:
            managed: The version, which would not fit even without ``going``.
            going: The versions that would have been unloaded for it, and now stay.

        """
        assert self._tracker is not None
        with self._lock:
            self._refuse_locked(managed, self._tracker, going)

    def give_up_on(self, refused: ManagedVersion) -> None:
        """Notes that a refused version cannot be tried again."""
        with self._lock:
            refused.is_refused = False

    # -- with the lock ---------------------------------------------------------------------

    def _begin_locked(self, managed: ManagedVersion) -> None:
        managed.is_executing = True
        self._num_executing += 1

    def _has_room_locked(
        self, managed: ManagedVersion, going: Sequence[ManagedVersion]
    ) -> bool:
        wanted = managed.harness.estimate
        if wanted is None:
            return True
        try:
            return not self._deferred and self._fits_with_locked(managed, wanted, going)
        except ServingError:
            return True  # its load will show whether it fits

    def _fits_with_locked(
        self,
        managed: ManagedVersion,
        wanted: ResourceAllocation,
        going: Sequence[ManagedVersion] = (),
    ) -> bool:
        """Whether a load fits once ``going`` are gone and all promises are kept."""
        if self._tracker is None:
            return True
        self._forget_promises_locked()
        leaving = set(going)
        for heir, elders in self._promises.items():
            if heir is not managed:
                wanted += heir.harness.estimate or ResourceAllocation()
                leaving.update(elders)
        freed = [each.reserved for each in leaving if each.reserved is not None]
        return self._tracker.would_fit(wanted, freed)

    def _forget_promises_locked(self) -> None:
        """Drops promises to versions that are not wanted any more, or were decided on."""
        states = (HarnessState.NEW, HarnessState.LOAD_REQUESTED)
        for heir in list(self._promises):
            if not heir.harness.is_aspired or heir.harness.state not in states:
                del self._promises[heir]
                self._may_have_made_room = True

    def _decide_locked(self, managed: ManagedVersion) -> bool:
        """Reserves for a load and counts it as executing, or fails it.

        Returns False, with neither done, if the load has to wait.
        """
        wanted = managed.harness.estimate or ResourceAllocation()
        if self._tracker is not None:
            try:
                fits = self._fits_with_locked(
                    managed, wanted
                ) and self._tracker.reserve(wanted)
            except ServingError as error:
                managed.harness.fail(error)
                return True
            if not fits:
                # A version with a promise does not wait for other promises, because two
                # that did would wait for each other for ever.
                is_awaited = self._num_executing or (
                    self._promises and managed not in self._promises
                )
                if is_awaited and self._can_ever_fit(managed):
                    return False
                self._refuse_locked(managed, self._tracker)
                return True
            managed.reserved = wanted
        self._begin_locked(managed)
        return True

    def _refuse_locked(
        self,
        managed: ManagedVersion,
        tracker: ResourceTracker,
        going: Sequence[ManagedVersion] = (),
    ) -> None:
        wanted = managed.harness.estimate or ResourceAllocation()
        managed.is_refused = self._can_ever_fit(managed)
        managed.harness.fail(_no_room(managed, wanted, tracker, going))

    def _can_ever_fit(self, managed: ManagedVersion) -> bool:
        wanted = managed.harness.estimate or ResourceAllocation()
        try:
            return self._tracker is None or self._tracker.can_ever_fit(wanted)
        except ServingError:
            return False


def _no_room(
    managed: ManagedVersion,
    wanted: ResourceAllocation,
    tracker: ResourceTracker,
    going: Sequence[ManagedVersion] = (),
) -> ServingError:
    """Returns the refusal of a load, with the numbers and what to do."""
    if not managed.is_refused:  # it would not fit if nothing else were loaded
        return ResourceExhausted(
            f"Insufficient resources to load servable {managed.harness.id}: it takes "
            f"{wanted.describe()}, which is more than all models may have together, "
            f"{tracker.total.describe()}; raise the limit"
        )
    kept = ", ".join(str(each.harness.id.version) for each in going)
    stays = f"without version {kept} too, which therefore stays; " if kept else ""
    return ResourceExhausted(
        f"Insufficient resources to load servable {managed.harness.id}: it takes "
        f"{wanted.describe()}, and models have {tracker.used.describe()} of "
        f"{tracker.total.describe()} already; {stays}{_cure(managed)}"
    )


def _too_large(
    managed: ManagedVersion,
    expected: ResourceAllocation,
    beside: ResourceAllocation,
    total: ResourceAllocation,
) -> ServingError:
    """Returns the refusal of a loaded version that took more than expected."""
    taken = managed.reserved or ResourceAllocation()
    return ResourceExhausted(
        f"Insufficient resources to load servable {managed.harness.id}: loaded, it takes "
        f"{taken.describe()}, where {expected.describe()} were expected; others use "
        f"{beside.describe()} of {total.describe()}; {_cure(managed)}"
    )


def _cure(managed: ManagedVersion) -> str:
    again = (
        "; it is tried again when memory is given back" if managed.is_refused else ""
    )
    return f"unload something or raise the limit{again}"
