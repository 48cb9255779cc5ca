"""An executor that waits for the test."""

from __future__ import annotations

from collections.abc import Callable


class LaterExecutor:
    """Runs functions when the test says so."""

    num_threads = num_free = 1

    def __init__(self) -> None:
        self.jobs: list[Callable[[], object]] = []

    def submit(self, fn: Callable[[], object]) -> None:
        self.jobs.append(fn)

    def excuse(self, num: int) -> None:
        pass

    def close(self, deadline_s: float | None = None) -> bool:
        return True
