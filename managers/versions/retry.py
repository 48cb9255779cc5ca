"""How often and after which pauses a failed load is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tfs.core.errors import Code, ServingError

PERMANENT_CODES: Final = frozenset(
    (
        Code.INVALID_ARGUMENT,
        Code.UNIMPLEMENTED,
        Code.FAILED_PRECONDITION,
        Code.DATA_LOSS,
    )
)
"""Codes of errors that another attempt cannot mend (see ``tfs.core.loader``)."""


def is_transient(error: ServingError) -> bool:
    """Whether trying again may help."""
    return error.code not in PERMANENT_CODES


_LONGEST_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """The retries of one load. Immutable.

    TensorFlow Serving pauses for the same 60 s each time. Here pauses double, so that a
    hiccup costs seconds, and a broken model costs little work.

    Attributes:
        max_num_retries: Attempts after the first; 0 for none
            (``--max_num_load_retries``).
        interval_s: The first pause; 0 retries at once
            (``--load_retry_interval_micros``).
        max_interval_s: Where the doubling stops; less than ``interval_s`` makes all
            pauses the same.

    """

    max_num_retries: int = 5
    interval_s: float = 1.0
    max_interval_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_num_retries < 0:
            raise ValueError(f"max_num_retries is negative: {self.max_num_retries}")
        if not (self.interval_s >= 0 and self.max_interval_s >= 0):  # also refuses NaN
            raise ValueError(f"retry pauses are negative or no numbers: {self}")

    def long_pause_s(self, num_failures: int, error: ServingError) -> float | None:
        """Returns the pause if each attempt takes away what serves; None to give up.

        It is a minute for each second of :meth:`pause_s`, up to a quarter of an hour,
        because the version that serves meanwhile is worth more than the one that has
        failed.
        """
        pause_s = self.pause_s(num_failures, error)
        if pause_s is None:
            return None
        return max(pause_s, min(60.0 * max(1.0, pause_s), _LONGEST_S))

    def pause_s(self, num_failures: int, error: ServingError) -> float | None:
        """Returns the pause after the ``num_failures``-th failure, None to give up."""
        if num_failures > self.max_num_retries or not is_transient(error):
            return None
        # At 2^30 the longest pause has long been reached. The bound keeps floats
        # finite.
        doubled_s = self.interval_s * 2.0 ** min(num_failures - 1, 30)
        return min(doubled_s, max(self.interval_s, self.max_interval_s))
