"""A target that remembers what it was told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tfs.core.source import AspiredVersions, AspiredVersionsCallback

T = TypeVar("T")


class RecordingTarget(Generic[T]):
    """A :class:`tfs.core.source.Target` for tests. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards _calls; leaf
        self._calls: list[AspiredVersions[T]] = []

    def aspired_versions_callback(self) -> AspiredVersionsCallback[T]:
        """Returns the function for sources to call."""
        return self._take

    def _take(self, aspired: AspiredVersions[T]) -> None:
        with self._changed:
            self._calls.append(aspired)
            self._changed.notify_all()

    @property
    def calls(self) -> list[AspiredVersions[T]]:
        """Every call so far, in order."""
        with self._changed:
            return list(self._calls)

    def take(self) -> list[AspiredVersions[T]]:
        """Returns the calls since the last ``take``, and forgets them."""
        with self._changed:
            calls, self._calls = self._calls, []
            return calls

    def versions(self, name: str) -> list[int] | None:
        """Returns the numbers last aspired for ``name``, None if it was never told."""
        with self._changed:
            for aspired in reversed(self._calls):
                if aspired.name == name:
                    return [data.id.version for data in aspired.versions]
        return None

    def wait_for(
        self,
        predicate: Callable[[list[AspiredVersions[T]]], bool],
        timeout_s: float = 20.0,
    ) -> bool:
        """Blocks until the calls satisfy ``predicate``; returns whether they do."""
        with self._changed:
            return self._changed.wait_for(lambda: predicate(self._calls), timeout_s)
