"""The turns of calls in a private CPython: one at a time, none behind a hung one.

A call there can be neither interrupted nor killed. A caller that would wait for it for
ever is told what hangs, and can go elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.runtime.inline.hang_watch import HANG_FACTOR


class CallTurn:
    """Held during a call. Thread-safe.

    Args:
        name: The name of the interpreter.
        timeout_s: A call hangs when it takes longer than this, and ten times as long as
            any of the same caller's calls before; None: it never does.
        now: The time in seconds.

    """

    def __init__(
        self,
        name: str,
        timeout_s: float | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._now = now
        self._lock = threading.Lock()
        # Written by the holder of the lock. The pair is replaced as a whole, so that a
        # reader gets both of one moment.
        self._running: tuple[str, float] | None = None
        self._longest_s: dict[str, float] = {}

    @property
    def is_taken(self) -> bool:
        """Whether a call is running."""
        return self._lock.locked()

    @property
    def is_hung(self) -> bool:
        """Whether the call that is running hangs."""
        return self._left_s() == 0.0

    def take(self, who: str) -> None:
        """Waits for the turn; ``end`` gives it back.

        Args:
            who: The caller, named to others if its call hangs.

        Raises:
            FailedPrecondition: The call that is running hangs, now or during the wait.

        """
        if not self._lock.acquire(blocking=False):
            self._wait()
        self._running = who, self._now()

    def try_take(self, who: str, patience_s: float = 0.0) -> bool:
        """Takes the turn if no call is running, or it ends in time; ``end`` gives it back.

        It does not wait for a call that hangs.
        """
        if not self._lock.acquire(blocking=False) and (
            self.is_hung or not self._lock.acquire(timeout=max(0.0, patience_s))
        ):
            return False
        self._running = who, self._now()
        return True

    def end(self) -> None:
        """Gives the turn back."""
        running, self._running = self._running, None
        if running is not None:
            who, begun_s = running
            call_s = self._now() - begun_s
            if call_s > self._longest_s.get(who, 0.0):
                self._longest_s[who] = call_s
        self._lock.release()

    def forget(self, who: str) -> None:
        """Forgets how long a caller's calls took."""
        self._longest_s.pop(who, None)

    def _wait(self) -> None:
        while True:
            left_s = self._left_s()
            if left_s is None:
                # No call can hang, or the one that has the turn is about to note since
                # when.
                if self._lock.acquire(timeout=-1 if self._timeout_s is None else 0.01):
                    return
            elif self._lock.acquire(timeout=left_s):
                return
            elif left_s == 0.0:
                raise self._error()

    def _left_s(self) -> float | None:
        """Returns how long the running call may still take; None if unknown."""
        running = self._running
        if running is None or self._timeout_s is None:
            return None
        who, begun_s = running
        limit_s = max(self._timeout_s, HANG_FACTOR * self._longest_s.get(who, 0.0))
        return max(0.0, begun_s + limit_s - self._now())

    def _error(self) -> ServingError:
        who, begun_s = self._running or ("another call", self._now())
        return FailedPrecondition(
            f"interpreter {self._name} takes no calls: one of {who} has been running "
            f"there for {self._now() - begun_s:.0f} s and cannot be ended. Use another, "
            "or run that model in processes, which can be"
        )
