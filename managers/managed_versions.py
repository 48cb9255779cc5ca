"""Every version that a manager has, found by name, by number and by generation."""

from __future__ import annotations

from managers.managed_version import ManagedVersion
from tfs.core.servable_id import ServableId


class ManagedVersions:
    """A table of versions; finding one costs the same however many there are.

    Not thread-safe: its manager's lock guards it.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, ManagedVersion]] = {}
        # Of one generation as a rule, of two while changed files replace what serves.
        self._by_id: dict[ServableId, list[ManagedVersion]] = {}

    def add(self, managed: ManagedVersion) -> None:
        """Takes a version in; of those with its number it is the newest."""
        harness = managed.harness
        self._by_name.setdefault(harness.id.name, {})[harness.generation] = managed
        self._by_id.setdefault(harness.id, []).append(managed)

    def remove(self, managed: ManagedVersion) -> None:
        """Forgets a version that is in the table."""
        harness = managed.harness
        stream = self._by_name[harness.id.name]
        del stream[harness.generation]
        if not stream:
            del self._by_name[harness.id.name]
        same = self._by_id[harness.id]
        same.remove(managed)
        if not same:
            del self._by_id[harness.id]

    def names(self) -> list[str]:
        """Returns the names of all servables that have a version."""
        return list(self._by_name)

    def stream(self, name: str) -> list[ManagedVersion]:
        """Returns the versions of one servable, in the order they were added."""
        return list(self._by_name.get(name, {}).values())

    def of_id(self, servable_id: ServableId) -> list[ManagedVersion]:
        """Returns the generations of one version, oldest first."""
        return list(self._by_id.get(servable_id, ()))

    def find(
        self, servable_id: ServableId, generation: int | None = None
    ) -> ManagedVersion | None:
        """Returns that generation of a version, or its newest; None without any."""
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
