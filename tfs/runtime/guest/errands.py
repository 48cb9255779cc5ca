"""What other threads of a worker have its main thread do between two calls."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Errands:
    """Functions for the main thread. Thread-safe.

    Args:
        request_fd: The eventfd on which the main thread waits for calls: it is rung for
            an errand as for a call, and looks at ``waiting`` first.

    Attributes:
        waiting: Run by the main thread, one each time it is rung.

    """

    def __init__(self, request_fd: int) -> None:
        self._request_fd = request_fd
        self.waiting: deque[Callable[[], None]] = deque()

    def run(self, fn: Callable[[], T]) -> T:
        """Returns what ``fn`` returns on the main thread, or raises; blocks for it."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(fn())
            except Exception as error:
                outcome.set_exception(error)

        self.waiting.append(run)
        os.eventfd_write(self._request_fd, 1)
        return outcome.result()
