"""Amounts of memory and other resources, bound to device instances or not.

An entry without an instance is *unbound*: it says how much is needed on some one
instance of the device, not yet which. Sums, differences and bounds are taken entry by
entry; only :class:`Devices` knows how many instances there are, and so what an
unbound entry may mean. (TensorFlow Serving: resources/resource_util.h; the algebra's
laws are tests.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument

MAIN: Final = "main"
RAM_BYTES: Final = "ram_in_bytes"
PEAK_RAM_BYTES: Final = "peak_ram_in_bytes"
_UNITS: Final = ((1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """One kind of resource of one device.

    Attributes:
        device: "main" or "gpu".
        kind: "ram_in_bytes" and so on.
        instance: Which one of the device; None is any one.

    """

    device: str
    kind: str
    instance: int | None = None

    @property
    def is_bound(self) -> bool:
        """Whether an instance is named."""
        return self.instance is not None

    def bound_to(self, instance: int) -> Resource:
        """Returns the same kind on ``instance``."""
        return Resource(self.device, self.kind, instance)


class ResourceAllocation:
    """Quantities by resource; zeros are left out. Immutable.

    Equal allocations compare equal whatever the order they were written in.
    """

    __slots__ = ("_quantities",)

    def __init__(
        self,
        quantities: Mapping[Resource, int] | Iterable[tuple[Resource, int]] = (),
    ) -> None:
        kept: dict[Resource, int] = {}
        items = quantities.items() if isinstance(quantities, Mapping) else quantities
        for resource, quantity in items:
            if quantity < 0:
                raise InvalidArgument(
                    f"Invalid resource allocation: negative {resource}: {quantity}"
                )
            if resource in kept:
                raise InvalidArgument(
                    f"Invalid resource allocation: Repeated resource {resource}"
                )
            if quantity:
                kept[resource] = quantity
        self._quantities = kept

    @classmethod
    def ram(cls, size_bytes: int, peak_bytes: int = 0) -> ResourceAllocation:
        """Returns main memory, and what loading or serving takes at most on top."""
        return cls(
            {
                Resource(MAIN, RAM_BYTES, 0): size_bytes,
                Resource(MAIN, PEAK_RAM_BYTES, 0): peak_bytes,
            }
        )

    def __getitem__(self, resource: Resource) -> int:
        """Returns the quantity, 0 if absent."""
        return self._quantities.get(resource, 0)

    def items(self) -> Iterable[tuple[Resource, int]]:
        """Returns the non-zero entries."""
        return self._quantities.items()

    @property
    def resources(self) -> Iterable[Resource]:
        """The resources with a quantity above zero."""
        return self._quantities.keys()

    @property
    def is_bound(self) -> bool:
        """Whether every entry names its instance."""
        return all(resource.is_bound for resource in self._quantities)

    def __add__(self, other: ResourceAllocation) -> ResourceAllocation:
        """Returns the sum, entry by entry; a bound and an unbound entry stay two."""
        total = dict(self._quantities)
        for resource, quantity in other.items():
            total[resource] = total.get(resource, 0) + quantity
        return ResourceAllocation(total)

    def __mul__(self, factor: int) -> ResourceAllocation:
        """Returns every quantity times ``factor`` >= 0."""
        return ResourceAllocation(
            {resource: quantity * factor for resource, quantity in self.items()}
        )

    def subtract(self, other: ResourceAllocation) -> ResourceAllocation | None:
        """Returns the difference; None if an entry would fall below zero."""
        left = dict(self._quantities)
        for resource, quantity in other.items():
            rest = left.get(resource, 0) - quantity
            if rest < 0:
                return None
            left[resource] = rest
        return ResourceAllocation(left)

    def maximum(self, other: ResourceAllocation) -> ResourceAllocation:
        """Returns the larger quantity of every entry of either."""
        larger = dict(self._quantities)
        for resource, quantity in other.items():
            larger[resource] = max(larger.get(resource, 0), quantity)
        return ResourceAllocation(larger)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ResourceAllocation):
            return NotImplemented
        return self._quantities == other._quantities

    def __hash__(self) -> int:
        return hash(frozenset(self._quantities.items()))

    def describe(self) -> str:
        """Returns the entries for people: "1.5 MiB and 8.0 KiB more at its peak".

        That is main memory; of other devices with their names: "512.0 MiB of gpu:1".
        """
        parts = []
        for entry, resource, quantity in sorted(
            self._entries(), key=lambda each: each[1].kind == PEAK_RAM_BYTES
        ):
            if resource.kind not in (RAM_BYTES, PEAK_RAM_BYTES):
                parts.append(entry)
                continue
            device = entry.partition("/")[0]
            where = "" if resource.device == MAIN else f" of {device}"
            more = " more at its peak" if resource.kind == PEAK_RAM_BYTES else ""
            parts.append(f"{_size(quantity)}{where}{more}")
        return " and ".join(parts) or "nothing"

    def __repr__(self) -> str:
        return (
            f"ResourceAllocation({', '.join(entry for entry, *_ in self._entries())})"
        )

    def _entries(self) -> Iterator[tuple[str, Resource, int]]:
        """Yields what is written of each entry, in order, and the entry."""
        for r, quantity in sorted(
            self._quantities.items(),
            key=lambda i: (i[0].device, i[0].kind, i[0].instance or -1),
        ):
            instance = "" if r.instance is None else f":{r.instance}"
            yield f"{r.device}{instance}/{r.kind}={quantity}", r, quantity


def _size(size_bytes: int) -> str:
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} bytes"


class Devices:
    """Which devices there are, and how many instances of each. Immutable.

    Every method raises ``InvalidArgument`` for an allocation that names a device or
    an instance there is not: ``Invalid resource allocation: Invalid device X`` or
    ``... Invalid device instance X:N``.
    """

    __slots__ = ("_num_instances",)

    def __init__(self, num_instances: Mapping[str, int]) -> None:
        for device, num in num_instances.items():
            if num < 1:
                raise ValueError(f"device {device} needs at least one instance")
        self._num_instances = dict(num_instances)

    def verify(self, allocation: ResourceAllocation) -> None:
        """Raises ``InvalidArgument`` unless all devices and instances exist."""
        for resource in allocation.resources:
            num = self._num_instances.get(resource.device)
            if num is None:
                raise InvalidArgument(
                    f"Invalid resource allocation: Invalid device {resource.device}"
                )
            if resource.instance is not None and not 0 <= resource.instance < num:
                raise InvalidArgument(
                    "Invalid resource allocation: Invalid device instance "
                    f"{resource.device}:{resource.instance}"
                )

    def normalize(self, allocation: ResourceAllocation) -> ResourceAllocation:
        """Returns it with the instance named wherever the device has only one."""
        self.verify(allocation)
        bound = ResourceAllocation()
        for resource, quantity in allocation.items():
            if self._has_one_meaning(resource):
                bound += ResourceAllocation({resource.bound_to(0): quantity})
            else:
                bound += ResourceAllocation({resource: quantity})
        return bound

    def overbind(self, allocation: ResourceAllocation) -> ResourceAllocation:
        """Returns it with each unbound entry on *every* instance: its worst case."""
        self.verify(allocation)
        bound = ResourceAllocation()
        for resource, quantity in allocation.items():
            for each in self._instances(resource):
                bound += ResourceAllocation({each: quantity})
        return bound

    def fits(self, allocation: ResourceAllocation, room: ResourceAllocation) -> bool:
        """Whether ``allocation`` <= ``room``.

        Bound entries must fit where they are bound. Each unbound one must then fit
        into what is left on some one instance, each looked at by itself.

        Raises:
            InvalidArgument: ``room`` is not bound, or either is not valid.

        """
        allocation, room = self.normalize(allocation), self.normalize(room)
        if not room.is_bound:
            raise InvalidArgument(f"room must be bound: {room!r}")
        left = room.subtract(
            ResourceAllocation((r, q) for r, q in allocation.items() if r.is_bound)
        )
        return left is not None and all(
            any(left[each] >= quantity for each in self._instances(resource))
            for resource, quantity in allocation.items()
            if not resource.is_bound
        )

    def _has_one_meaning(self, resource: Resource) -> bool:
        return not resource.is_bound and self._num_instances[resource.device] == 1

    def _instances(self, resource: Resource) -> list[Resource]:
        if resource.is_bound:
            return [resource]
        num = self._num_instances[resource.device]
        return [resource.bound_to(instance) for instance in range(num)]
