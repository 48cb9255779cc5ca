"""Keeps the versions of some servables back until somebody asks for them.

What a source aspires of such a servable is passed on only while it is admitted; otherwise
the target is told that nothing of it is wanted. So whatever lies behind (copying, loading,
swapping, unloading) knows nothing of demand.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace

from sources.servable_to_monitor import StoragePath
from tfs.core.source import AspiredVersions, AspiredVersionsCallback, Outlet


class OnDemandVersions:
    """A source adapter that lets through what is admitted. Thread-safe."""

    def __init__(self) -> None:
        self._outlet: Outlet[StoragePath] = Outlet()
        # Guards the fields below, and orders what the target is told of a name: held
        # while it is told. Rank: after the turn of a source, before any lock of a target.
        self._turn = threading.Lock()
        self._names: frozenset[str] = frozenset()
        self._aspired: dict[str, AspiredVersions[StoragePath]] = {}
        self._versions: dict[str, tuple[int, ...]] = {}  # in them
        self._admitted: set[str] = set()

    def aspired_versions_callback(self) -> AspiredVersionsCallback[StoragePath]:
        """Returns the function for sources to call; it does nothing after ``close``."""
        return self._take

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[StoragePath]
    ) -> None:
        """Connects the outgoing side; calls that waited for it go on."""
        self._outlet.set_aspired_versions_callback(callback)

    def set_names(self, names: Collection[str]) -> None:
        """Sets of which servables versions are kept back; the others pass.

        One that was not among them is admitted until it is withheld, if the source has
        aspired versions of it before: have the source say them again.
        """
        with self._turn:
            for name in self._names.difference(names):
                aspired = self._aspired.pop(name, None)
                self._versions.pop(name, None)
                if aspired is not None and name not in self._admitted:
                    self._outlet.emit(aspired)
                self._admitted.discard(name)
            self._names = frozenset(names)

    def versions(self, name: str) -> tuple[int, ...]:
        """Returns the versions that are aspired of a servable among the names."""
        return self._versions.get(name, ())

    def admit(self, name: str) -> None:
        """Passes on what is aspired of a servable, from now on."""
        with self._turn:
            self._admitted.add(name)
            aspired = self._aspired.get(name)
            if aspired is not None:
                self._outlet.emit(aspired)

    def withhold(self, name: str, reason: str) -> None:
        """Tells the target that nothing of a servable is wanted until it is admitted."""
        with self._turn:
            self._admitted.discard(name)
            aspired = self._aspired.get(name)
            if aspired is not None:
                self._outlet.emit(replace(aspired, versions=(), reason=reason))

    def close(self) -> None:
        """Makes later calls do nothing, and ends those that wait."""
        self._outlet.close()

    def _take(self, aspired: AspiredVersions[StoragePath]) -> None:
        if not self._outlet.wait_connected():
            return
        with self._turn:
            name = aspired.name
            if name in self._names:
                self._aspired[name] = aspired
                self._versions[name] = tuple(
                    each.id.version for each in aspired.versions
                )
                if aspired.versions and name not in self._admitted:
                    return
            self._outlet.emit(aspired)
