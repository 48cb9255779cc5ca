"""When a call is repeated. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import Code, InvalidArgument, ServingError

_LEAST: Final = {
    "max_attempts": 1,
    "first_pause_s": 0,
    "pause_factor": 1,
    "longest_pause_s": 0,
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often calls are repeated, and after which pauses. Immutable.

    A call the server turned away *with* a retry hint did not run: it is repeated
    after that pause. One that broke without a hint may have run: it is repeated
    only if it is idempotent.

    Attributes:
        max_attempts: Attempts in all; 1 never repeats.
        first_pause_s: Pause before the first repeat of an idempotent call.
        pause_factor: The factor by which pauses grow.
        longest_pause_s: The longest pause.

    """

    max_attempts: int = 4
    first_pause_s: float = 0.05
    pause_factor: float = 2.0
    longest_pause_s: float = 2.0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                raise InvalidArgument(f"{name} must be at least {least}: {value}")

    def pause_s(
        self,
        error: ServingError,
        num_attempts: int,
        remaining_s: float,
        *,
        is_idempotent: bool,
    ) -> float | None:
        """Returns how long to wait before the next attempt; None to give up.

        Args:
            error: The error of the last attempt.
            num_attempts: Attempts so far.
            remaining_s: Time left to the caller's deadline; a pause that would
                reach it gives up now.
            is_idempotent: Whether running the call twice does no harm.

        """
        if error.code is not Code.UNAVAILABLE or num_attempts >= self.max_attempts:
            return None
        if error.retry_after_s is not None:
            pause_s = error.retry_after_s
        elif is_idempotent:
            grown_s = self.first_pause_s * self.pause_factor ** (num_attempts - 1)
            pause_s = min(grown_s, self.longest_pause_s)
        else:
            return None
        return pause_s if pause_s < remaining_s else None


class Attempts:
    """How often one call was tried, and how long it may still take. Not thread-safe.

    Args:
        policy: When to repeat.
        now: The clock, in seconds.
        timeout_s: Seconds that all attempts together may take, from now on.
        is_idempotent: Whether running the call twice does no harm.

    """

    def __init__(
        self,
        policy: RetryPolicy,
        now: Callable[[], float],
        timeout_s: float,
        *,
        is_idempotent: bool,
    ) -> None:
        self._policy = policy
        self._now = now
        self._deadline_s = now() + timeout_s
        self._is_idempotent = is_idempotent
        self._num_failed = 0

    @property
    def remaining_s(self) -> float:
        """Seconds that the next attempt may take; never negative."""
        return max(0.0, self._deadline_s - self._now())

    def pause_after(self, error: ServingError) -> float | None:
        """Counts a failed attempt; returns the next pause, None if it was the last."""
        self._num_failed += 1
        return self._policy.pause_s(
            error,
            self._num_failed,
            self._deadline_s - self._now(),
            is_idempotent=self._is_idempotent,
        )
