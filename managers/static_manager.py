"""Servables that are there from the start to the end: for tests and embedding.

(TensorFlow Serving: core/static_manager.h.)
"""

from __future__ import annotations

from collections.abc import Sequence

from managers.serving_map import Handle, ServingMap
from tfs.core.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest


class StaticManager:
    """Gives out pins on a fixed set of servables. Thread-safe.

    It neither loads nor destroys servables: they belong to whoever made them.
    """

    def __init__(self, serving_map: ServingMap) -> None:
        self._serving_map = serving_map

    @property
    def serving_map(self) -> ServingMap:
        """Where request handlers pin versions."""
        return self._serving_map

    def acquire(self, request: ServableRequest) -> Handle:
        """Pins the requested version; see :class:`tfs.core.servable_handle.Manager`."""
        return self._serving_map.acquire_request(request)

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns all versions, in order."""
        return self._serving_map.list_ids()


class StaticManagerBuilder:
    """Collects servables for one :class:`StaticManager`. Confined to its caller."""

    def __init__(self) -> None:
        self._serving_map: ServingMap | None = ServingMap()
        self._ids: set[ServableId] = set()

    def add(self, servable_id: ServableId, servable: object) -> None:
        """Adds a servable.

        Raises:
            InvalidArgument: ``Servable cannot be null.``
            AlreadyExists: The id was added before; the first servable stays.
            FailedPrecondition: ``build`` was called before.

        """
        serving_map = self._open()
        if servable is None:
            raise InvalidArgument(f"Servable cannot be null. {servable_id}")
        if servable_id in self._ids:
            raise AlreadyExists(f"{servable_id} was added before")
        self._ids.add(servable_id)
        serving_map.publish(ServableHandle(servable_id, servable))

    def build(self) -> StaticManager:
        """Returns the manager; afterwards the builder is done.

        Raises:
            FailedPrecondition: It was called before.

        """
        serving_map = self._open()
        self._serving_map = None
        return StaticManager(serving_map)

    def _open(self) -> ServingMap:
        if self._serving_map is None:
            raise FailedPrecondition(
                "Build() already called on this StaticManagerBuilder."
            )
        return self._serving_map
