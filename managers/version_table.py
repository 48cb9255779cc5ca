"""Every version that a manager has, found by name, by number and by generation."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from managers.managed_version import ManagedVersion
from tfs.core.servable_id import ServableId


class VersionTable:
    """A table of versions; finding one costs the same however many there are.

    Thread-safe; who looks for a version by its number takes no lock.
    """

    def __init__(self) -> None:
        # Guards changes of both tables below, and reading the first; leaf: nothing is
        # called under it.
        self._lock = threading.Lock()
        self._by_name: dict[str, dict[int, ManagedVersion]] = {}
        # The generations of each version, oldest first: one as a rule, two while
        # changed files replace what serves. The tuples are replaced and never changed.
        self._by_id: dict[ServableId, tuple[ManagedVersion, ...]] = {}
        self._generations = itertools.count(1)

    def next_generation(self) -> int:
        """Returns a number for a harness, higher than all before."""
        return next(self._generations)

    def add(self, managed: ManagedVersion, *, is_replacement: bool = True) -> bool:
        """Adds a version, as the newest of those with its number.

        Returns whether it was added. If there is one with its number, only a
        replacement is.
        """
        harness = managed.harness
        with self._lock:
            if not is_replacement and harness.id in self._by_id:
                return False
            self._by_name.setdefault(harness.id.name, {})[harness.generation] = managed
            self._by_id[harness.id] = (*self._by_id.get(harness.id, ()), managed)
            return True

    def remove(self, managed: ManagedVersion) -> bool:
        """Removes a version if it can be forgotten; returns whether it was removed."""
        harness = managed.harness
        with self._lock:
            same = self._by_id.get(harness.id, ())
            if managed not in same or not managed.can_be_forgotten:
                return False
            left = tuple(each for each in same if each is not managed)
            if left:
                self._by_id[harness.id] = left
            else:
                del self._by_id[harness.id]
            stream = self._by_name[harness.id.name]
            del stream[harness.generation]
            if not stream:
                del self._by_name[harness.id.name]
            return True

    def names(self) -> list[str]:
        """Returns the names of all servables that have a version."""
        with self._lock:
            return list(self._by_name)

    def stream(self, name: str) -> list[ManagedVersion]:
        """Returns the versions of one servable, in the order they were added."""
        with self._lock:
            return list(self._by_name.get(name, {}).values())

    def siblings(self, managed: ManagedVersion) -> Sequence[ManagedVersion]:
        """Returns the other generations of a version, oldest first."""
        same = self._by_id.get(managed.harness.id, ())
        if len(same) == 1 and same[0] is managed:
            return ()  # as a rule
        return [each for each in same if each is not managed]

    def find(
        self, servable_id: ServableId, generation: int | None = None
    ) -> ManagedVersion | None:
        """Returns that generation of a version, or the newest; None if there is none."""
        for managed in reversed(self._by_id.get(servable_id, ())):
            if generation in (None, managed.harness.generation):
                return managed
        return None

    def find_serving(self, servable_id: ServableId) -> ManagedVersion | None:
        """Returns the newest generation that requests can reach; None without any."""
        for managed in reversed(self._by_id.get(servable_id, ())):
            if managed.is_serving:
                return managed
        return None
