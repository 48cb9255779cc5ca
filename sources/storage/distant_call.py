"""A listing of a place that may not answer, by a thread that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sources.storage.storage_threads import StorageCall, StorageThreads


@dataclass(slots=True)
class DistantCall:
    """At most one call at a time. Confined to its source's turn.

    If it is asked for again while it is under way, no second one begins, because a dead
    mount would take a thread for each. It is outdated then, and begins again after its
    end.
    """

    _place: str = ""
    _call: StorageCall | None = None
    _is_outdated: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it is under way."""
        return self._call is not None

    def begin(
        self,
        storage: StorageThreads,
        place: str,
        call: Callable[[], object],
        patience_s: float,
    ) -> None:
        """Has ``call`` run on a thread for ``place``, unless it is under way."""
        if self._call is not None:
            self._is_outdated = True
            return
        self._is_outdated = False
        self._place = place
        try:
            self._call = storage.submit(place, call, patience_s)
        except RuntimeError:  # closing
            self._call = None

    def end(self) -> bool:
        """Notes its end; returns whether it has to begin again."""
        self._call = None
        return self._is_outdated

    def late_s(self, storage: StorageThreads) -> float | None:
        """Returns for how long it was waited for, once that is too long; else None."""
        call = self._call
        if call is None or not storage.is_late(self._place, call):
            return None
        return call.patience_s
