"""What requests need of whatever keeps servables loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest

T_co = TypeVar("T_co", covariant=True)


class Manager(Protocol[T_co]):
    """Gives out pins on loaded servables. Thread-safe; never blocks on a load.

    Implementors promise: a handle's servable is fully usable until released; the
    servable is destroyed on a manager thread, never on the releasing one.
    (TensorFlow Serving: core/manager.h.)
    """

    def acquire(self, request: ServableRequest) -> ServableHandle[object]:
        """Pins the requested version; the caller owes one ``release``.

        Raises:
            NotFound: ``Servable not found for request: ...``; nothing is pinned.

        """
        ...

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns the versions that can be requested now, in order."""
        ...
