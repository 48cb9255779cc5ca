"""Lets a manager thread wait for something that the loop does."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from tfs.core.errors import ServingError

T = TypeVar("T")


class Waiter(Generic[T]):
    """One result, set once on the loop, awaited on another thread. Thread-safe."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: ServingError | None = None
        self._value: T | None = None

    def set(self, value: T) -> None:
        """Ends the wait with a value."""
        self._value = value
        self._done.set()

    def fail(self, error: ServingError) -> None:
        """Ends the wait with an error."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float, late: ServingError) -> T:
        """Blocks until there is a result; the timeout may be infinite.

        Raises:
            ServingError: The one given to ``fail``, or ``late`` after ``timeout_s``.

        """
        if not self._done.wait(min(timeout_s, threading.TIMEOUT_MAX)):
            raise late
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set with the event
