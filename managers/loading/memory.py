"""How much memory is reserved, and how freed memory comes back to the operating system.

A version reserves before it is loaded, and gives back after it was unloaded. (TensorFlow
Serving: resources/resource_tracker.h.)

glibc keeps freed memory in its arenas; after a model of gigabytes, that is most of it.
``malloc_trim`` returns whole free pages, even from the middle of arenas. Before that,
Python's reference cycles have to be collected, because the modules of a package are
part of some. Both hold up other threads for a while, so they run no more often than needed.
The collector holds the GIL for 25 to 35 ms with torch imported, but for next to no time
after a ``gc.freeze()`` at the end of start-up. The trim takes each arena's lock in turn.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.resources import (
    MAIN,
    PEAK_RAM_BYTES,
    RAM_BYTES,
    Devices,
    Resource,
    ResourceAllocation,
)

log = logging.getLogger(__name__)


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


TRIM_INTERVAL_S: Final = 1.0
"""During a wave of unloads there is one trim in this many seconds, and one after it."""


def _find_malloc_trim() -> Callable[[int], object] | None:
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None  # not glibc
    function.argtypes = [ctypes.c_size_t]
    function.restype = ctypes.c_int
    return function


_malloc_trim = _find_malloc_trim()


def trim_heap() -> None:
    """Returns free heap pages to the system. Blocks; without glibc it does nothing."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def release_to_system() -> None:
    """Collects cycles and returns free heap pages to the system. Blocks."""
    gc.collect()
    yield_to_requests()
    trim_heap()


class MemoryReleaser:
    """Calls ``release`` after unloads and failed loads, at most once per interval.

    Thread-safe. Nothing else should run the collector, or it would run for each of ten
    unloads.
    """

    def __init__(
        self,
        clock: Clock,
        release: Callable[[], None] = release_to_system,
        interval_s: float = TRIM_INTERVAL_S,
    ) -> None:
        self._clock = clock
        self._release = release
        self._interval_s = interval_s
        self._lock = threading.Lock()  # guards the two below; leaf
        self._next_s: float | None = None
        self._is_owed = False

    def owe(self) -> None:
        """Asks for a call of ``release_owed`` in time; releases nothing by itself."""
        with self._lock:
            self._is_owed = True
            if self._next_s is None:
                self._next_s = self._clock.now()

    @property
    def owed_at_s(self) -> float | None:
        """When to call ``release_owed``; None while nothing is owed."""
        with self._lock:
            return self._next_s if self._is_owed else None

    def release_owed(self) -> None:
        """Releases what is owed, if its time has come. Blocks."""
        with self._lock:
            now_s = self._clock.now()
            if not self._is_owed or (self._next_s is not None and now_s < self._next_s):
                return
            self._is_owed = False
            self._next_s = now_s + self._interval_s
        try:
            self._release()
        except Exception:  # the version's end is reported in any case
            log.exception("event=memory_release_failed")
