"""Decides when to send a request a second time, to another replica: hedged backup requests.

A second request is sent after the time in which nineteen of twenty recent requests for
the model were answered, and for at most one request in twenty. So if requests are slow
because everything is slow, this does not make it slower. (J. Dean, "Achieving Rapid
Response Times in Large Online Services", which section 3.1 of the paper follows.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Final

_QUANTILE: Final = 0.95  # of recent latencies: a second request is sent after it
_LEAST_DELAY_S: Final = 0.001
_BURST: Final = 10.0  # second requests that may come at once after a quiet time
_NUM_RECENT: Final = 200  # latencies of a model that are remembered
_LEAST_SEEN: Final = 20  # before any is sent


class Hedging:
    """One model's hedging. Confined to one thread.

    Args:
        budget: Most second requests, as a share of the first ones; 0 sends none.

    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._allowance = 1.0 if budget else 0.0

    def note_request(self) -> None:
        """Counts a request, which adds a part of a second one to the budget."""
        self._allowance = min(self._allowance + self._budget, _BURST)

    def note_latency(self, duration_s: float) -> None:
        """Remembers how long an answer took, to the first or to the second request.

        An answer to a second request counts with the delay before it, so that the
        quantile stays where it is.
        """
        if len(self._recent) >= _NUM_RECENT:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(duration_s)
        insort(self._sorted, duration_s)

    @property
    def delay_s(self) -> float | None:
        """How long to wait for the first answer; None: send no second request."""
        if not self._budget or len(self._sorted) < _LEAST_SEEN:
            return None
        index = int(_QUANTILE * len(self._sorted))
        return max(self._sorted[index], _LEAST_DELAY_S)

    def take(self) -> bool:
        """Tells whether a second request may be sent now; if so, it is counted."""
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True
