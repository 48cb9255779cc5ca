"""How the figures of a trial moved."""

from __future__ import annotations

import itertools
from typing import Final

from tfs.server.canary.comparison import Tally, TrialSpan

MAX_SPANS: Final = 60
_FIRST_STEP_S: Final = 2.0


class TrialHistory:
    """Sums at moments of equal distance, which doubles when there are too many.

    Guarded by its trial's lock.
    """

    def __init__(self) -> None:
        self._moments: list[tuple[float, ...]] = []
        self._step_s = _FIRST_STEP_S

    def note(self, now_s: float, total: Tally) -> None:
        """Takes the sums of all requests so far, unless it has just done so."""
        if self._moments and now_s < self._moments[-1][0] + self._step_s:
            return
        primary, canary = (
            side.latency_s.snapshot() for side in (total.primary, total.canary)
        )
        self._moments.append(
            (
                now_s,
                *(total.num_disagreeing, total.num_class_rows),
                *(total.sum_abs_diff, total.num_elements),
                *(canary.total, canary.num, primary.total, primary.num),
                *(total.canary.num_errors, total.canary.num),
            )
        )
        if len(self._moments) > MAX_SPANS + 1:
            del self._moments[1::2]
            self._step_s *= 2

    def spans(self) -> tuple[TrialSpan, ...]:
        """Returns what lies between the moments, the oldest first."""
        return tuple(
            _span(before, after) for before, after in itertools.pairwise(self._moments)
        )


def _span(before: tuple[float, ...], after: tuple[float, ...]) -> TrialSpan:
    grown = [new - old for old, new in zip(before, after, strict=True)][1:]
    rates = [
        part / whole if whole else None
        for part, whole in zip(grown[::2], grown[1::2], strict=True)
    ]
    canary_s, primary_s = rates[2], rates[3]
    ratio = canary_s / primary_s if canary_s is not None and primary_s else None
    return TrialSpan(before[0], rates[0], rates[1], ratio, rates[4])
