"""Amounts of memory and other resources, bound to device instances or not.

An entry without an instance is *unbound*: it says how much is needed on some one
instance of the device, not yet which. (TensorFlow Serving:
resources/resource_util.h; the algebra's laws are tests.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument

MAIN: Final = "main"
GPU: Final = "gpu"
RAM_BYTES: Final = "ram_in_bytes"
PEAK_RAM_BYTES: Final = "peak_ram_in_bytes"


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
    def is_bound(self) -> bool:
        """Whether every entry names its instance."""
        return all(resource.is_bound for resource in self._quantities)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ResourceAllocation):
            return NotImplemented
        return self._quantities == other._quantities

    def __hash__(self) -> int:
        return hash(frozenset(self._quantities.items()))

    def __repr__(self) -> str:
        parts = (
            f"{r.device}{'' if r.instance is None else f':{r.instance}'}/{r.kind}={q}"
            for r, q in sorted(
                self._quantities.items(),
                key=lambda i: (i[0].device, i[0].kind, i[0].instance or -1),
            )
        )
        return f"ResourceAllocation({', '.join(parts)})"
