"""Loads a version by a loader of its platform's own, and replays what it brings."""

from __future__ import annotations

from tfs.core.errors import FailedPrecondition
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.servables.loaded_version import LoadedVersion
from tfs.servables.platform import LoadContext


class OwnLoader:
    """Implements :class:`tfs.core.loader.Loader`. Confined to one caller at a time."""

    def __init__(self, path: str, own: Loader[Servable], context: LoadContext) -> None:
        self._path = path
        self._own = own
        self._context = context
        self._version: LoadedVersion | None = None

    @property
    def servable(self) -> Servable:
        """The loaded version."""
        if self._version is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._version

    def estimate_resources(self) -> ResourceAllocation:
        return self._own.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        if self._version is not None:
            raise FailedPrecondition(f"{servable_id.slashed} is loaded already")
        self._own.load(servable_id)
        try:
            version = LoadedVersion(self._own.servable)
            self._context.replay(version, self._path)
        except BaseException:
            self._own.unload()
            raise
        self._version = version

    def unload(self) -> None:
        if self._version is not None:
            self._version = None
            self._own.unload()
