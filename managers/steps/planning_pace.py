"""How often a servable's next actions are decided, so that deciding stays cheap.

Deciding looks at every version of a servable, and each version changes a few times
while it loads. A servable with few versions is decided on after every change. One with
thousands rests in between, for longer the more versions there are, so that deciding
takes a small and constant share of a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_UNRESTED: Final = 64
_REST_PER_VERSION_S: Final = 20e-6
"""Pause per version after a decision: about ten times what deciding takes."""


class PlanningPace:
    """Says which servables to decide on now. Confined to one caller at a time."""

    def __init__(self) -> None:
        self._rests_until_s: dict[str, float] = {}
        self._late: dict[str, None] = {}

    def take_due(
        self, changed: Iterable[str], urgent: Iterable[str], now_s: float
    ) -> list[str]:
        """Returns what to decide on now; what rests is returned by a later call.

        Args:
            changed: Names of the servables to which something happened.
            urgent: Servables to decide on even while they rest, because more or less is
                wanted.
            now_s: The time.

        """
        self._late.update(dict.fromkeys(changed))
        due = dict.fromkeys(urgent)
        for name in self._late:
            if self._rests_until_s.get(name, now_s) <= now_s:
                due[name] = None
        for name in due:
            self._late.pop(name, None)
            self._rests_until_s.pop(name, None)
        return list(due)

    def is_resting(self, name: str) -> bool:
        """Whether a change of ``name`` waits until it has rested."""
        return name in self._rests_until_s

    def note(self, name: str, num_versions: int, now_s: float) -> None:
        """Notes that a servable of so many versions was decided on."""
        if num_versions > _UNRESTED:
            self._rests_until_s[name] = now_s + num_versions * _REST_PER_VERSION_S

    def next_s(self) -> float | None:
        """Returns when the next one that waits has rested; None if none waits."""
        return min((self._rests_until_s[name] for name in self._late), default=None)
