"""Holds threads up at named points, so that a test chooses the order of a race."""

from __future__ import annotations

import threading

from tfs.testing.patience import PATIENCE_S


class Sequencer:
    """Points that threads reach and wait at until the test lets them pass.

    Thread-safe. At a point that was opened beforehand, nobody waits.

    Example:
        loader = FakeLoader(id, on_load=lambda: sequencer.reach("loading"))
        ...
        sequencer.wait_reached("loading")   # a thread is inside load()
        sequencer.open("loading")           # it goes on

    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards both sets; leaf
        self._reached: dict[str, int] = {}
        self._open: set[str] = set()

    def reach(self, point: str) -> None:
        """Blocks the calling thread until ``point`` is open."""
        with self._changed:
            self._reached[point] = self._reached.get(point, 0) + 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: point in self._open, PATIENCE_S):
                raise TimeoutError(f"nobody opened {point!r}")

    def open(self, point: str) -> None:
        """Lets every thread pass ``point``, also those that reach it later."""
        with self._changed:
            self._open.add(point)
            self._changed.notify_all()

    def wait_reached(self, point: str, num: int = 1) -> None:
        """Blocks the test until ``num`` threads have come to ``point``."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._reached.get(point, 0) >= num, PATIENCE_S
            ):
                raise TimeoutError(f"{self._reached.get(point, 0)}/{num} at {point!r}")

    def num_reached(self, point: str) -> int:
        """How many threads have come to ``point`` so far."""
        with self._changed:
            return self._reached.get(point, 0)
