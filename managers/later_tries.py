"""When to try versions again that failed to load and let the old version return meanwhile.

If the old version has to go before the new one is loaded, each attempt takes away what
serves. So after the first failed attempt the old version returns, and the next attempt
waits for a long time. A passing fault still heals in the end, and a broken version
costs seconds of service instead of all its retries.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfs.core.servable_id import ServableId


@dataclass(frozen=True, slots=True)
class LaterTry:
    """An attempt to come. Immutable.

    Attributes:
        id: The version.
        generation: Which of the version's harnesses failed.
        at_s: When it is due, by the clock.
        pause_s: How long it would have waited if there were no old version to bring
            back.

    """

    id: ServableId
    generation: int
    at_s: float
    pause_s: float


class LaterTries:
    """What is to be tried again of each servable, and when. Confined to one step."""

    def __init__(self) -> None:
        self._tries: dict[str, list[LaterTry]] = {}

    def add(self, later: LaterTry) -> None:
        """Notes an attempt to come."""
        self._tries.setdefault(later.id.name, []).append(later)

    def of(self, name: str) -> list[LaterTry]:
        """Returns what is to be tried again of a servable."""
        return self._tries.get(name, [])

    def take(self, name: str) -> list[LaterTry]:
        """Takes out what is to be tried again of a servable."""
        return self._tries.pop(name, [])

    def take_due(self, now_s: float) -> list[LaterTry]:
        """Takes out what is to be tried again by now."""
        if not self._tries:
            return []
        due = [
            each
            for tries in self._tries.values()
            for each in tries
            if each.at_s <= now_s
        ]
        for each in due:
            left = [other for other in self._tries[each.id.name] if other is not each]
            if left:
                self._tries[each.id.name] = left
            else:
                del self._tries[each.id.name]
        return due

    def next_s(self) -> float | None:
        """Returns when, by the clock, the next one is due; None without any."""
        return min(
            (each.at_s for tries in self._tries.values() for each in tries),
            default=None,
        )
