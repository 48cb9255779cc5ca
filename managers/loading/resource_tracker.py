"""How much of each resource is reserved: reserve before loading, give back after unloading.

(TensorFlow Serving: resources/resource_tracker.h.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from tfs.core.errors import InvalidArgument
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
