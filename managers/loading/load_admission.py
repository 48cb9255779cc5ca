"""Which loads may begin with the available memory, and which have to wait.

A version reserves before it is loaded, and gives back after it was unloaded. (TensorFlow
Serving: resources/resource_tracker.h.) This is the deciding phase of loads and unloads: short, one at a time, in the order of
requests. VersionExecutor carries out what was decided, several at a
time, and reports back here when it is over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from managers.versions.harness_state import HarnessState
from managers.versions.version import Version
from tfs.core.errors import InvalidArgument, ResourceExhausted, ServingError
from tfs.core.resources import (
    MAIN,
    PEAK_RAM_BYTES,
    RAM_BYTES,
    Devices,
    Resource,
    ResourceAllocation,
)


class ResourceTracker:
    """A total and what is reserved of it. Thread-safe; never blocks.

    Reservations that are bound to no instance count on every instance of their device,
    which is the worst case. If the total names no ``peak_ram_in_bytes``, peaks are
    charged to ``ram_in_bytes`` of the same device: the transient memory of a load or a
    call must fit beside that of all others, which may peak at the same moment.

    Args:
        total: All resources that exist.
        devices: The devices that exist.

    Raises:
        InvalidArgument: ``total_resources must be bound: ...``, or it is not valid.

    """

    def __init__(self, total: ResourceAllocation, devices: Devices) -> None:
        self._devices = devices
        self._total = devices.normalize(total)
        if not self._total.is_bound:
            raise InvalidArgument(f"total_resources must be bound: {total!r}")
        self._charges_peak = all(r.kind != PEAK_RAM_BYTES for r in total.resources)
        self._lock = threading.Lock()  # guards _used; leaf
        self._used = ResourceAllocation()

    @classmethod
    def ram(cls, limit_bytes: int) -> ResourceTracker:
        """Returns a tracker of main memory (``--model_memory_limit_bytes``)."""
        total = ResourceAllocation({Resource(MAIN, RAM_BYTES, 0): limit_bytes})
        return cls(total, Devices({MAIN: 1}))

    @property
    def total(self) -> ResourceAllocation:
        """All resources that exist; bound to instances."""
        return self._total

    @property
    def used(self) -> ResourceAllocation:
        """The sum of what is reserved."""
        return self._used

    @property
    def is_exceeded(self) -> bool:
        """Whether more is reserved than exists: a version took more than expected."""
        return not self._fits(ResourceAllocation(), self._used)

    def is_more(self, one: ResourceAllocation, other: ResourceAllocation) -> bool:
        """Whether ``one`` takes more of any resource than ``other``; both were reserved."""
        return self._charge(other).subtract(self._charge(one)) is None

    def used_beside(self, reserved: ResourceAllocation) -> ResourceAllocation:
        """Returns what is used without a reservation."""
        return self._used.subtract(self._charge(reserved)) or ResourceAllocation()

    def can_ever_fit(self, wanted: ResourceAllocation) -> bool:
        """Whether ``wanted`` would fit if nothing else were reserved.

        Raises:
            InvalidArgument: It names a device or an instance there is not.

        """
        return self._fits(self._charge(wanted), ResourceAllocation())

    def would_fit(
        self, wanted: ResourceAllocation, freed: Iterable[ResourceAllocation] = ()
    ) -> bool:
        """Whether ``wanted`` would fit now if the reservations ``freed`` had ended.

        Raises:
            InvalidArgument: It names a device or an instance there is not.

        """
        used = self._used
        for allocation in freed:
            used = used.subtract(self._charge(allocation)) or used
        return self._fits(self._charge(wanted), used)

    def reserve(self, wanted: ResourceAllocation) -> bool:
        """Adds ``wanted`` to what is used if it fits; returns whether it did.

        Raises:
            InvalidArgument: It names a device or an instance there is not; nothing
                changed.

        """
        charge = self._charge(wanted)
        with self._lock:
            if not self._fits(charge, self._used):
                return False
            self._used += charge
            return True

    def release(self, reserved: ResourceAllocation) -> None:
        """Takes back what ``reserve`` added."""
        charge = self._charge(reserved)
        with self._lock:
            left = self._used.subtract(charge)
            if left is None:
                raise InvalidArgument(f"was not reserved: {reserved!r}")
            self._used = left

    def replace(
        self, before: ResourceAllocation, after: ResourceAllocation
    ) -> ResourceAllocation:
        """Changes one reservation; returns what is reserved now.

        This is never refused: a loaded version really takes what was measured, and
        later loads must not be admitted beside it as if it took less; see
        ``is_exceeded``. An invalid allocation is ignored, and the reservation stays as
        it was.
        """
        old = self._charge(before)
        try:
            new = self._charge(after)
        except InvalidArgument:
            return before
        with self._lock:
            rest = self._used.subtract(old)
            if rest is None:
                return before
            self._used = rest + new
            return after

    def _charge(self, allocation: ResourceAllocation) -> ResourceAllocation:
        """Returns the form kept in _used: normalized, peaks where they are charged."""
        if self._charges_peak:
            moved = ResourceAllocation()
            for resource, quantity in allocation.items():
                if resource.kind == PEAK_RAM_BYTES:
                    resource = replace(resource, kind=RAM_BYTES)
                moved += ResourceAllocation({resource: quantity})
            allocation = moved
        return self._devices.normalize(allocation)

    def _fits(self, charge: ResourceAllocation, used: ResourceAllocation) -> bool:
        return self._devices.fits(self._devices.overbind(used) + charge, self._total)


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
