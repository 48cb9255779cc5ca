"""The turns of calls in a private CPython: one at a time."""

from __future__ import annotations

import threading
from types import TracebackType

from tfs.core.errors import FailedPrecondition


class CallTurn:
    """Held while something runs there, as a context manager. Thread-safe.

    A call there can be neither interrupted nor killed. Who has waited ``limit_s`` for
    its end is refused.

    Args:
        name: The name of the interpreter.
        limit_s: Seconds; None waits as long as it takes.

    """

    def __init__(self, name: str, limit_s: float | None) -> None:
        self._name = name
        self._limit_s = limit_s
        self._lock = threading.Lock()

    @property
    def is_taken(self) -> bool:
        """Whether a call is running."""
        return self._lock.locked()

    def take(self, patience_s: float | None) -> bool:
        """Takes the turn if it can be had in so many seconds; None waits for it."""
        timeout_s = -1 if patience_s is None else max(0.0, patience_s)
        return self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def end(self) -> None:
        """Gives the turn back."""
        self._lock.release()

    def __enter__(self) -> None:
        if not self.take(self._limit_s):
            raise FailedPrecondition(
                f"a call has been running in interpreter {self._name} for over "
                f"{self._limit_s:.0f} s, and cannot be ended; restart the process if it "
                "does not end by itself"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
