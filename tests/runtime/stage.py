"""Where a test meets the model code that runs in its own process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


class Stage:
    """Signals between a test and the servables it wrote. Thread-safe."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything and lets go of whoever waits no more."""
        self.clock = FakeClock()
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.sizes: list[int] = []
        self.on_iteration: Callable[[int, int], None] | None = None
        self._barrier = threading.Barrier(1)

    def expect(self, num: int) -> None:
        """Makes that many calls of ``meet`` wait for each other."""
        self._barrier = threading.Barrier(num)

    def meet(self) -> None:
        """Blocks until the others are here."""
        self._barrier.wait(PATIENCE_S)

    def enter(self) -> None:
        """Says that a call began, and blocks until the test lets it go on."""
        self.entered.release()
        assert self.go.wait(PATIENCE_S)

    def note(self, num_rows: int) -> None:
        """Notes the size of a batch."""
        self.sizes.append(num_rows)

    def iteration(self, first: int, index: int) -> None:
        """Tells the test that a loop begins an iteration."""
        if self.on_iteration is not None:
            self.on_iteration(first, index)


STAGE = Stage()
