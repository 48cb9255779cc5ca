"""The seam through which other threads run functions on the serving loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class LoopEntry(Protocol):
    """The way onto the serving loop. Thread-safe; never blocks.

    Implementors promise: functions run one at a time, on the loop; those that are posted
    run in posting order. Once the loop is closed they never run.
    """

    def post(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop, soon."""
        ...

    def post_at(self, when_s: float, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop at a time by its clock, or soon if that has passed."""
        ...
