"""Copies a version from a store to this machine before anything else is done with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from sources.remote.cache import VersionCache
from sources.servable_to_monitor import StoragePath
from tfs.core.errors import FailedPrecondition
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId

T = TypeVar("T")


class FetchingLoader(Generic[T]):
    """Loads the local copy of a remote version. Confined to one caller at a time.

    The first estimate, or the load, blocks for as long as the copy takes; if that fails,
    the next attempt tries again. The copy is in use until the version is unloaded, or this
    loader is gone.

    Args:
        version: Where the version lies, as a URL.
        cache: Holds the copies.
        make: Makes the loader of a version directory.

    """

    def __init__(
        self,
        version: StoragePath,
        cache: VersionCache,
        make: Callable[[str], Loader[T]],
    ) -> None:
        self._version = version
        self._cache = cache
        self._make = make
        # The loader of the copy, and what gives the copy back.
        self._copy: tuple[Loader[T], Callable[[], object]] | None = None

    @property
    def servable(self) -> T:
        if self._copy is None:
            raise FailedPrecondition(f"{self._version.path} is not loaded")
        return self._copy[0].servable

    def estimate_resources(self) -> ResourceAllocation:
        return self._fetched().estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        self._fetched().load(servable_id)

    def unload(self) -> None:
        if self._copy is None:
            return
        (loader, release), self._copy = self._copy, None
        try:
            loader.unload()
        finally:
            release()

    def _fetched(self) -> Loader[T]:
        """Returns the loader of the local copy, which is made unless it is here.

        Raises:
            ServingError: It cannot be copied, or nobody can load it.

        """
        if self._copy is None:
            copy = self._cache.fetch(self._version)
            release = weakref.finalize(self, self._cache.release, copy)
            release.atexit = False
            try:
                loader = self._make(copy.path)
            except BaseException:
                release()
                raise
            self._copy = loader, release
        return self._copy[0]
