"""A source whose versions are fixed from the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from sources.storage_path import StoragePath
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersionsCallback, Outlet

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
        self._outlet.connect(callback)
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
