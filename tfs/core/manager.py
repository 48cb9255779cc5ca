"""The seam through which requests get handles from whatever keeps servables loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, cast

from tfs.core.errors import InvalidArgument
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest

T = TypeVar("T")
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


def acquire_as(
    manager: Manager[object], request: ServableRequest, kind: type[T]
) -> ServableHandle[T]:
    """Pins the requested version as a ``kind``; the caller owes one ``release``.

    Raises:
        NotFound: It is not available; nothing is pinned.
        InvalidArgument: ``Servable type doesn't match the asked for type.``; nothing
            is pinned.

    """
    handle = manager.acquire(request)
    if isinstance(handle.servable, kind):
        return cast("ServableHandle[T]", handle)
    handle.release()
    raise InvalidArgument(
        f"Servable type doesn't match the asked for type. {handle.id.slashed} is no "
        f"{kind.__name__}"
    )


def available_as(
    pinned: Sequence[ServableHandle[object]], kind: type[T]
) -> dict[ServableId, ServableHandle[T]]:
    """Keeps the handles whose servable is a ``kind``; releases the others."""
    kept: dict[ServableId, ServableHandle[T]] = {}
    for handle in pinned:
        if isinstance(handle.servable, kind):
            kept[handle.id] = cast("ServableHandle[T]", handle)
        else:
            handle.release()
    return kept
