"""When to repeat a call: a pure decision, driven by both clients."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.core.errors import Code, InvalidArgument, ServingError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently. Immutable.

    A call the server turned away *with* a retry hint did not run: it is repeated
    after that pause. One that broke without a hint may have run: it is repeated
    only if it is idempotent.

    Attributes:
        max_attempts: Tries in all; 1 never repeats.
        first_pause_s: Pause before the first repeat of an idempotent call.
        pause_factor: How pauses grow.
        longest_pause_s: What they grow to.

    """

    max_attempts: int = 4
    first_pause_s: float = 0.05
    pause_factor: float = 2.0
    longest_pause_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.first_pause_s < 0 or self.pause_factor < 1:
            raise InvalidArgument(f"a retry policy that makes no sense: {self}")

    def pause_s(
        self,
        error: ServingError,
        num_attempts: int,
        remaining_s: float,
        *,
        is_idempotent: bool,
    ) -> float | None:
        """Returns how long to wait before the next try, None to give up.

        Args:
            error: What the last try ended with.
            num_attempts: Tries so far.
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
