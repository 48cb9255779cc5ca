"""What travels from a source to a manager: versions, each with data or an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class ServableData(Generic[T]):
    """A version together with what to load it from, or why it cannot be loaded.

    A source may aspire an erroneous version: it reaches the manager and shows in
    the version's status instead of stopping the others
    (TensorFlow Serving: core/servable_data.h).
    """

    id: ServableId
    payload: T | None = None
    error: ServingError | None = None

    def __post_init__(self) -> None:
        if (self.payload is None) == (self.error is None):
            raise ValueError(f"{self.id} needs either a payload or an error")

    def with_payload(self, payload: U) -> ServableData[U]:
        """Returns the same version carrying ``payload``."""
        return ServableData(self.id, payload)


@dataclass(frozen=True, slots=True)
class AspiredVersions(Generic[T]):
    """The complete set of versions that a source wants of one servable.

    Omission means unload; an empty set unloads every version.

    Attributes:
        name: The servable's name; every version's id carries it.
        versions: The versions, in the source's order.
        reason: Why the set is what it is, for people ("latest(1) of /models/a: 3
            appeared"); recorded with every load and unload it causes.

    """

    name: str
    versions: tuple[ServableData[T], ...]
    reason: str = ""

    def __post_init__(self) -> None:
        for data in self.versions:
            if data.id.name != self.name:
                raise ValueError(
                    f"Servable name: {self.name} doesn't match name in servable "
                    f"version: {data.id.name}"
                )
