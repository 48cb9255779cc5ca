"""Decides when to send a request a second time, to another replica: hedged backup requests.

A second request is sent after the time in which nineteen of twenty recent requests for
the model were answered, and for at most one request in twenty. So if requests are slow
because everything is slow, this does not make it slower. (J. Dean, "Achieving Rapid
Response Times in Large Online Services", which section 3.1 of the paper follows.)
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from tfs.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class HedgeOptions:
    """How requests are hedged. Immutable.

    Attributes:
        quantile: A second request is sent after this quantile of recent latencies.
        least_delay_s: A second request is never sent earlier than this.
        budget: Most second requests, as a share of the first ones; 0 sends none.
        burst: How many of them may come at once after a quiet time.
        num_recent: How many latencies of a model are remembered.
        least_seen: None is sent before so many latencies are known.

    """

    quantile: float = 0.95
    least_delay_s: float = 0.001
    budget: float = 0.05
    burst: float = 10.0
    num_recent: int = 200
    least_seen: int = 20

    def __post_init__(self) -> None:
        for name, least, most in (
            ("quantile", 0, 1),
            ("least_delay_s", 0, math.inf),
            ("budget", 0, 1),
            ("burst", 1, math.inf),
            ("num_recent", 1, math.inf),
            ("least_seen", 1, math.inf),
        ):
            value = getattr(self, name)
            if not least <= value <= most:  # also refuses NaN
                allowed = f"at least {least}" if most == math.inf else "from 0 to 1"
                raise InvalidArgument(f"hedge_{name} must be {allowed}: {value}")


class Hedging:
    """One model's hedging. Confined to one thread."""

    def __init__(self, options: HedgeOptions) -> None:
        self._options = options
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._allowance = 1.0 if options.budget else 0.0

    def note_request(self) -> None:
        """Counts a request, which adds a part of a second one to the budget."""
        options = self._options
        self._allowance = min(self._allowance + options.budget, options.burst)

    def note_latency(self, duration_s: float) -> None:
        """Remembers how long an answer took, to the first or to the second request.

        An answer to a second request counts with the delay before it, so that the
        quantile stays where it is.
        """
        if len(self._recent) >= self._options.num_recent:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(duration_s)
        insort(self._sorted, duration_s)

    @property
    def delay_s(self) -> float | None:
        """How long to wait for the first answer; None: send no second request."""
        if not self._options.budget or len(self._sorted) < self._options.least_seen:
            return None
        index = min(
            int(self._options.quantile * len(self._sorted)), len(self._sorted) - 1
        )
        return max(self._sorted[index], self._options.least_delay_s)

    def take(self) -> bool:
        """Tells whether a second request may be sent now; if so, it is counted."""
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True
