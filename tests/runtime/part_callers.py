"""Threads that call a batched part at the same time, and what came of each call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tfs.runtime.batched import BatchedPart
from tfs.testing.patience import PATIENCE_S


class Callers:
    """Threads that each make one call, and what came of it."""

    def __init__(self) -> None:
        self.results: dict[Any, Any] = {}
        self._threads: dict[Any, threading.Thread] = {}

    def start(self, name: Any, function: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.results[name] = function()
            except Exception as error:
                self.results[name] = error

        thread = threading.Thread(target=run)
        self._threads[name] = thread
        thread.start()

    def join(self, *names: Any) -> None:
        """Waits for these calls to end; for all if none is named."""
        for name in names or self._threads:
            self._threads[name].join(PATIENCE_S)
            assert not self._threads[name].is_alive()


def wait_for_waiting(part: BatchedPart, num: int) -> None:
    """Blocks until as many calls wait in the part's queues."""
    with part._changed:
        assert part._changed.wait_for(
            lambda: sum(map(len, part._queues.values())) >= num, PATIENCE_S
        )
