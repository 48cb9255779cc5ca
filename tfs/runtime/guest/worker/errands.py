"""Lets other threads of a worker run functions on its main thread, between two calls."""

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
        request_fd: The eventfd on which the main thread waits for calls. It is rung for
            an errand as for a call; the main thread looks at ``waiting`` first.

    Attributes:
        waiting: The main thread runs one of these each time it is rung.

    """

    def __init__(self, request_fd: int) -> None:
        self._request_fd = request_fd
        self.waiting: deque[Callable[[], None]] = deque()

    def run(self, fn: Callable[[], T]) -> T:
        """Runs ``fn`` on the main thread. Blocks; returns its result, or raises its error."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(fn())
            except Exception as error:
                outcome.set_exception(error)

        self.waiting.append(run)
        os.eventfd_write(self._request_fd, 1)
        return outcome.result()
