"""Which loads may begin with the available memory, and which have to wait.

This is the deciding phase of loads and unloads: short, one at a time, in the order of
requests. VersionExecutor carries out what was decided, several at a
time, and reports back here when it is over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from managers.loading.memory import ResourceTracker
from managers.versions.harness_state import HarnessState
from managers.versions.version import Version
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
        lock: Guards what is kept here, and is_executing and is_refused of every version:
            that of the table. Under it, reading where a load stands, reserving for it and
            giving it up are one decision.

    """

    def __init__(self, tracker: ResourceTracker | None, lock: threading.Lock) -> None:
        self._tracker = tracker
        self._lock = lock
        self._deferred: deque[Version] = deque()
        # For each version that room was promised to, the versions that are unloaded for
        # it.
        self._promises: dict[Version, Sequence[Version]] = {}
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

    def is_deferred(self, version: Version) -> bool:
        """Whether a load waits for memory."""
        return version in self._deferred

    def take_room_made(self) -> bool:
        """Whether room may have been made since this was last called.

        That is so if something has ended, or if a load that others wait behind was
        decided on or given up.
        """
        with self._lock:
            was_made, self._may_have_made_room = self._may_have_made_room, False
            return was_made

    # -- loads and unloads ---------------------------------------------------------------

    def admit(self, version: Version) -> bool:
        """Returns whether a load may go on; if not, it waits or has failed."""
        with self._lock:
            if version.is_executing:  # take_decided() has taken it off the queue
                return True
            if version.is_over:
                return False
            # A version that was promised room waits behind no other; others wait for
            # it.
            is_promised = version in self._promises
            must_queue = (
                self._deferred and not is_promised and self._can_ever_fit(version)
            )
            if not must_queue and self._decide_locked(version):
                return version.is_executing
            if is_promised:
                self._deferred.appendleft(version)
            else:
                self._deferred.append(version)
            return False

    def take_decided(self) -> list[Version]:
        """Takes the loads off the head of the queue that fit or are refused."""
        with self._lock:
            self._forget_promises_locked()
            decided = []
            while self._deferred and self._decide_locked(self._deferred[0]):
                decided.append(self._deferred.popleft())
                self._may_have_made_room = True
            return decided

    def cancel(self, version: Version) -> bool:
        """Gives up a load, as its harness does; returns whether that ended it."""
        with (
            self._lock
        ):  # under the lock, or it might be admitted in between and never ended
            if not version.cancel():
                return False
            if version in self._deferred:
                self._deferred.remove(version)
                self._may_have_made_room = True
            return True

    def begin_unload(self, version: Version) -> None:
        """Counts an unload as executing."""
        with self._lock:
            self._begin_locked(version)

    def end(self, version: Version) -> None:
        """Stops counting a load or an unload; idempotent."""
        with self._lock:
            if version.is_executing:
                version.is_executing = False
                self._num_executing -= 1
                self._may_have_made_room = True

    def correct(
        self, version: Version, estimate: ResourceAllocation
    ) -> ServingError | None:
        """Reserves what a loaded version really takes, instead of what was expected.

        Returns:
            None, or the reason why it may not stay: it takes clearly more than
            expected, and more than the others leave. Its load is then undone and ends;
            if it could fit at another time, it is marked as refused.

        """
        expected = version.reserved
        if self._tracker is None or expected is None:
            return None
        with self._lock:
            version.reserved = self._tracker.replace(expected, estimate)
            is_noise = not self._tracker.is_more(
                version.reserved * _NOISE[1], expected * _NOISE[0]
            )
            if is_noise or not self._tracker.is_exceeded:
                return None
            beside = self._tracker.used_beside(version.reserved)
            version.is_refused = self._can_ever_fit(version) and version.can_be_renewed
            return _too_large(version, expected, beside, self._tracker.total)

    def release(self, version: Version) -> None:
        """Gives back what was reserved for a version; idempotent.

        Call it before ``end``, which announces that there may be room.
        """
        reserved, version.reserved = version.reserved, None
        if reserved is not None and self._tracker is not None:
            self._tracker.release(reserved)

    # -- before a load is asked for --------------------------------------------------------

    def promise(self, version: Version, going: Sequence[Version]) -> bool:
        """Keeps room for a load that is to come, if it fits once ``going`` are unloaded.

        Nothing is promised while others wait, because they come first. A load of which
        it cannot be known whether it fits is taken to fit.
        """
        with self._lock:
            if not self._has_room_locked(version, going):
                return False
            self._promises[version] = tuple(going)
            return True

    def refuse(self, version: Version, going: Sequence[Version]) -> None:
        """Fails a load for want of memory before it is asked for.

        Args:
            version: The version, which would not fit even without ``going``.
            going: The versions that would have been unloaded for it, and now stay.

        """
        assert self._tracker is not None
        with self._lock:
            self._refuse_locked(version, self._tracker, going)

    # -- with the lock ---------------------------------------------------------------------

    def _begin_locked(self, version: Version) -> None:
        version.is_executing = True
        self._num_executing += 1

    def _has_room_locked(self, version: Version, going: Sequence[Version]) -> bool:
        wanted = version.estimate
        if wanted is None:
            return True
        try:
            return not self._deferred and self._fits_with_locked(version, wanted, going)
        except ServingError:
            return True  # its load will show whether it fits

    def _fits_with_locked(
        self,
        version: Version,
        wanted: ResourceAllocation,
        going: Sequence[Version] = (),
    ) -> bool:
        """Whether a load fits once ``going`` are gone and all promises are kept."""
        if self._tracker is None:
            return True
        self._forget_promises_locked()
        leaving = set(going)
        for heir, elders in self._promises.items():
            if heir is not version:
                wanted += heir.estimate or ResourceAllocation()
                leaving.update(elders)
        freed = [each.reserved for each in leaving if each.reserved is not None]
        return self._tracker.would_fit(wanted, freed)

    def _forget_promises_locked(self) -> None:
        """Drops promises to versions that are not wanted any more, or were decided on."""
        states = (HarnessState.NEW, HarnessState.LOAD_REQUESTED)
        for heir in list(self._promises):
            if not heir.is_aspired or heir.state not in states:
                del self._promises[heir]
                self._may_have_made_room = True

    def _decide_locked(self, version: Version) -> bool:
        """Reserves for a load and counts it as executing, or fails it.

        Returns False, with neither done, if the load has to wait.
        """
        wanted = version.estimate or ResourceAllocation()
        if self._tracker is not None:
            try:
                fits = self._fits_with_locked(
                    version, wanted
                ) and self._tracker.reserve(wanted)
            except ServingError as error:
                version.fail(error)
                return True
            if not fits:
                # A version with a promise does not wait for other promises, because two
                # that did would wait for each other for ever.
                is_awaited = self._num_executing or (
                    self._promises and version not in self._promises
                )
                if is_awaited and self._can_ever_fit(version):
                    return False
                self._refuse_locked(version, self._tracker)
                return True
            version.reserved = wanted
        self._begin_locked(version)
        return True

    def _refuse_locked(
        self,
        version: Version,
        tracker: ResourceTracker,
        going: Sequence[Version] = (),
    ) -> None:
        wanted = version.estimate or ResourceAllocation()
        version.is_refused = self._can_ever_fit(version)
        version.fail(_no_room(version, wanted, tracker, going))

    def _can_ever_fit(self, version: Version) -> bool:
        wanted = version.estimate or ResourceAllocation()
        try:
            return self._tracker is None or self._tracker.can_ever_fit(wanted)
        except ServingError:
            return False


def _no_room(
    version: Version,
    wanted: ResourceAllocation,
    tracker: ResourceTracker,
    going: Sequence[Version] = (),
) -> ServingError:
    """Returns the refusal of a load, with the numbers and what to do."""
    if not version.is_refused:  # it would not fit if nothing else were loaded
        return ResourceExhausted(
            f"Insufficient resources to load servable {version.id}: it takes "
            f"{wanted.describe()}, which is more than all models may have together, "
            f"{tracker.total.describe()}; raise the limit"
        )
    kept = ", ".join(str(each.id.version) for each in going)
    stays = f"without version {kept} too, which therefore stays; " if kept else ""
    return ResourceExhausted(
        f"Insufficient resources to load servable {version.id}: it takes "
        f"{wanted.describe()}, and models have {tracker.used.describe()} of "
        f"{tracker.total.describe()} already; {stays}{_cure(version)}"
    )


def _too_large(
    version: Version,
    expected: ResourceAllocation,
    beside: ResourceAllocation,
    total: ResourceAllocation,
) -> ServingError:
    """Returns the refusal of a loaded version that took more than expected."""
    taken = version.reserved or ResourceAllocation()
    return ResourceExhausted(
        f"Insufficient resources to load servable {version.id}: loaded, it takes "
        f"{taken.describe()}, where {expected.describe()} were expected; others use "
        f"{beside.describe()} of {total.describe()}; {_cure(version)}"
    )


def _cure(version: Version) -> str:
    again = (
        "; it is tried again when memory is given back" if version.is_refused else ""
    )
    return f"unload something or raise the limit{again}"
