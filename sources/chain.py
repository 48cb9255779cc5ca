"""A source of fixed versions, and a whole chain of links as one thing to own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

from sources.servable_to_monitor import StoragePath
from tfs.core.servable_id import ServableId
from tfs.core.source import (
    AspiredVersions,
    AspiredVersionsCallback,
    Outlet,
    ServableData,
    Source,
    SourceAdapter,
    Target,
    connect,
)

T = TypeVar("T")


class StaticSource(Generic[T]):
    """Aspires fixed sets, each once, on the thread that connects it. Thread-safe.

    (TensorFlow Serving: sources/storage_path/static_storage_path_source.h.)
    """

    def __init__(self, aspired: Sequence[AspiredVersions[T]]) -> None:
        self._aspired = tuple(aspired)
        self._outlet: Outlet[T] = Outlet()

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[T]
    ) -> None:
        """Connects the target and calls it before returning."""
        self._outlet.set_aspired_versions_callback(callback)
        for aspired in self._aspired:
            self._outlet.emit(aspired)

    def close(self) -> None:
        """Makes sure that no call comes any more."""
        self._outlet.close()


def static_storage_path_source(
    name: str, version: int, path: str
) -> StaticSource[StoragePath]:
    """Returns a source of one version lying at ``path``."""
    data = ServableData(ServableId(name, version), StoragePath(path))
    reason = f"configured statically: {path}"
    return StaticSource([AspiredVersions(name, (data,), reason)])


class SourceChain:
    """Wires ``source`` through ``adapters`` to ``target``. Confined to its owner.

    The links are connected from the far end, so that nothing flows before everything is
    in place. They are closed from the near end: first the source, so that nothing new
    comes, then the adapters in order. The target is its owner's to close. (TensorFlow
    Serving: AspiredVersionsManagerBuilder::AddSourceChain.)

    Payloads differ from link to link, which Python's types cannot express for a list.
    So the caller has to make sure that neighbours fit.
    """

    def __init__(
        self,
        source: Source[Any],
        adapters: Sequence[SourceAdapter[Any, Any]],
        target: Target[Any],
    ) -> None:
        self._links: tuple[object, ...] = (source, *adapters)
        sink = target
        for adapter in reversed(adapters):
            connect(adapter, sink)
            sink = adapter
        connect(source, sink)

    def close(self) -> None:
        """Closes every link that can be closed, the source first."""
        for link in self._links:
            close = getattr(link, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
