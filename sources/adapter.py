"""Adapters: from one payload to another, version by version.

(TensorFlow Serving: core/source_adapter.h.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from sources.servable_to_monitor import StoragePath
from tfs.core.errors import ServingError, serving_error
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.source import (
    AspiredVersions,
    AspiredVersionsCallback,
    Outlet,
    ServableData,
)

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")

Convert = Callable[[ServableId, In], Out]
"""Converts a payload; raises an error if this version cannot be converted."""


class UnarySourceAdapter(Generic[In, Out]):
    """Converts every version by itself. Thread-safe.

    A version that carries an error passes through unchanged. If one cannot be
    converted, it gets an error of its own, and the others go on. If a payload equals
    the last one of its version, the result is the *same object* as before, so that a
    target can tell by identity which versions are new. A failed conversion is tried
    again at the next call.
    """

    def __init__(self, convert: Convert[In, Out]) -> None:
        self._convert = convert
        self._outlet: Outlet[Out] = Outlet()
        # By name, of which calls come one after the other, as every source promises.
        self._made: dict[str, dict[int, tuple[In, Out]]] = {}

    def aspired_versions_callback(self) -> AspiredVersionsCallback[In]:
        """Returns the function for sources to call; it does nothing after ``close``."""
        return self._take

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[Out]
    ) -> None:
        """Connects the outgoing side; calls that waited for it go on."""
        self._outlet.set_aspired_versions_callback(callback)

    def adapt_one(self, data: ServableData[In]) -> ServableData[Out]:
        """Converts one version now, whatever was converted before."""
        if data.error is not None or data.payload is None:
            return ServableData(data.id, None, data.error)
        try:
            return data.with_payload(self._convert(data.id, data.payload))
        except (Exception, SystemExit) as error:
            # A platform that calls sys.exit must not end the thread that all sources
            # share.
            wrapped = serving_error(error, f"cannot use {data.id.slashed}")
            return ServableData(data.id, None, wrapped)

    def adapt(self, aspired: AspiredVersions[In]) -> AspiredVersions[Out]:
        """Converts a whole set, keeping order, name and reason."""
        made: dict[int, tuple[In, Out]] = {}
        versions: list[ServableData[Out]] = []
        before = self._made.get(aspired.name, {})
        for data in aspired.versions:
            kept = before.get(data.id.version)
            if kept is not None and data.error is None and kept[0] == data.payload:
                adapted = data.with_payload(kept[1])
            else:
                adapted = self.adapt_one(data)
            versions.append(adapted)
            if data.payload is not None and adapted.payload is not None:
                made[data.id.version] = (data.payload, adapted.payload)
        if made:
            self._made[aspired.name] = made
        else:
            self._made.pop(aspired.name, None)
        return AspiredVersions(aspired.name, tuple(versions), aspired.reason)

    def close(self) -> None:
        """Makes later calls do nothing and ends those that wait."""
        self._outlet.close()
        self._made.clear()

    def _take(self, aspired: AspiredVersions[In]) -> None:
        # It waits before it converts, so that results are handed on at once.
        if self._outlet.wait_connected():
            self._outlet.emit(self.adapt(aspired))


class IdentitySourceAdapter(UnarySourceAdapter[T, T]):
    """Hands everything on unchanged, as a place to connect to. Thread-safe."""

    def __init__(self) -> None:
        super().__init__(lambda _, payload: payload)


class ErrorInjectingSourceAdapter(UnarySourceAdapter[In, Out]):
    """Gives every version the same error; errors that come in stay. Thread-safe.

    It is for a platform that is not offered, whose versions then show in the status.
    """

    def __init__(self, error: ServingError) -> None:
        def convert(_: ServableId, __: In) -> Out:
            raise error

        super().__init__(convert)


class PrefixStoragePathAdapter(UnarySourceAdapter[StoragePath, StoragePath]):
    """Puts ``prefix`` before every path, with one slash between. Thread-safe.

    An empty prefix changes nothing; a path that starts with a slash loses it.
    """

    def __init__(self, prefix: str) -> None:
        def convert(_: ServableId, storage: StoragePath) -> StoragePath:
            return replace(storage, path=join_path(prefix, storage.path))

        super().__init__(convert)


def join_path(prefix: str, path: str) -> str:
    """Joins two paths with exactly one slash between them."""
    if not prefix or not path:
        return prefix or path
    return f"{prefix.rstrip('/')}/{path.lstrip('/')}"


class MadeLoader(Generic[In, T]):
    """A loader that knows what it was made from. Confined to one caller at a time.

    Two of them are equal if they were made of the same version and an equal payload, in
    the same way. So a version that is aspired again while it serves is not loaded
    again, even if its loader was made anew. A manager that unloaded it can have another
    one made. (``tfs.core.loader.Renewable``.)

    Args:
        servable_id: The version.
        payload: The argument of ``make``.
        make: Makes the loader that does the work.

    Raises:
        Exception: What ``make`` raises.

    """

    def __init__(
        self, servable_id: ServableId, payload: In, make: Convert[In, Loader[T]]
    ) -> None:
        self._made_of = servable_id, payload, make
        self._loader = make(servable_id, payload)

    def estimate_resources(self) -> ResourceAllocation:
        return self._loader.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        self._loader.load(servable_id)

    def unload(self) -> None:
        self._loader.unload()

    @property
    def servable(self) -> T:
        return self._loader.servable

    @property
    def make_another(self) -> Callable[[], MadeLoader[In, T]]:
        """A function that makes an equal loader that was never loaded."""
        servable_id, payload, make = self._made_of
        return functools.partial(MadeLoader, servable_id, payload, make)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MadeLoader):
            return NotImplemented
        return bool(self._made_of == other._made_of)

    def __hash__(self) -> int:
        return hash(self._made_of[0])

    def __repr__(self) -> str:
        return f"<MadeLoader {self._made_of[0].slashed} of {self._loader!r}>"


class LoaderSourceAdapter(UnarySourceAdapter[In, Loader[T]]):
    """Makes a :class:`MadeLoader` of every version. Thread-safe.

    Args:
        make: Makes a loader of a payload; quick, loads nothing, and raises what is wrong
            with the version.

    """

    def __init__(self, make: Convert[In, Loader[T]]) -> None:
        super().__init__(
            lambda servable_id, payload: MadeLoader(servable_id, payload, make)
        )
