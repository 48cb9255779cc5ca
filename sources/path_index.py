"""Finds the servables that a changed path concerns, without looking at all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class PathIndex:
    """Finds names by a path at, above or below their base path. Immutable.

    Args:
        base_paths: Base path by name; several names may share one.

    """

    def __init__(self, base_paths: Mapping[str, str]) -> None:
        at: dict[str, list[str]] = {}
        self._above: dict[str, list[str]] = {}
        for name, base_path in base_paths.items():
            base = base_path.rstrip("/")
            at.setdefault(base, []).append(name)
            for folder in _ancestors(base):
                self._above.setdefault(folder, []).append(name)
        # One for each of many thousands: the collector of cycles visits lists for ever.
        self._at = {base: tuple(names) for base, names in at.items()}

    def find(self, path: str) -> list[str]:
        """Returns the names whose base path is ``path``, or above or below it."""
        path = path.rstrip("/")
        found = list(self._above.get(path, ()))
        for folder in (path, *_ancestors(path)):
            found += self._at.get(folder, ())
        return found


def _ancestors(path: str) -> Iterable[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path
