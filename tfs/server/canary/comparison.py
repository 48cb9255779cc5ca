"""The sum of what two versions answered to the same requests, and its figures; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tfs.core.stats import Histogram, HistogramSnapshot, exponential_bounds

if TYPE_CHECKING:
    from tfs.server.canary.difference import Difference

LATENCY_BOUNDS_S: Final = exponential_bounds(0.0001, 2.0, 20)
# Guards look after every request: at 2 they would see faults in most fair splits.
_CHANCE_DEVIATIONS: Final = 3.0


@dataclass(slots=True)
class Tally:
    """The sum of what both versions answered. Confined to its trial's lock.

    Attributes:
        num_pairs: Copies that both answered.
        num_pair_rows: Their rows.
        num_incomparable: Of the pairs, those that could not be compared.
        num_class_rows: Rows compared by class; those of incomparable pairs count.
        num_disagreeing: Of these, rows of another class.
        num_elements: Numbers compared.
        sum_abs_diff: Sum of their absolute differences.
        max_abs_diff: The largest.
        num_primary: Requests the primary ended, copied ones and its share of a split.
        num_primary_errors: Of these, failed.
        num_canary: The same for the canary.
        num_canary_errors: Of these, failed.
        num_canary_faults: Failed where the primary's did not, or on its own account.
        num_primary_split: Of the primary's, those that were its share of a split.
        num_primary_disputed: Of these, failed in a way that a caller can bring about: the
            request did not fit, the model refused it, the caller gave up.
        num_canary_split: The same for the canary.
        num_canary_disputed: The same for the canary; they are among its errors, not
            among its faults.

    """

    num_pairs: int = 0
    num_pair_rows: int = 0
    num_incomparable: int = 0
    num_class_rows: int = 0
    num_disagreeing: int = 0
    num_elements: int = 0
    sum_abs_diff: float = 0.0
    max_abs_diff: float = 0.0
    num_primary: int = 0
    num_primary_errors: int = 0
    num_canary: int = 0
    num_canary_errors: int = 0
    num_canary_faults: int = 0
    num_primary_split: int = 0
    num_primary_disputed: int = 0
    num_canary_split: int = 0
    num_canary_disputed: int = 0
    primary_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS_S))
    canary_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS_S))

    def add_pair(self, num_rows: int, found: Difference | None) -> None:
        """Takes in a pair of answers; None could not be compared."""
        self.num_pairs += 1
        self.num_pair_rows += num_rows
        if found is None:
            # Outputs of another form are another answer, for every row.
            self.num_incomparable += 1
            self.num_class_rows += num_rows
            self.num_disagreeing += num_rows
            return
        self.num_class_rows += found.num_rows
        self.num_disagreeing += found.num_disagreeing
        self.num_elements += found.num_elements
        self.sum_abs_diff += found.sum_abs_diff
        self.max_abs_diff = max(self.max_abs_diff, found.max_abs_diff)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tally amounts to; None is not measured yet. Immutable."""

    num_samples: int = 0
    num_pairs: int = 0
    num_rows: int = 0
    num_incomparable: int = 0
    max_abs_diff: float | None = None
    mean_abs_diff: float | None = None
    top1_disagreement: float | None = None
    primary_error_rate: float | None = None
    canary_error_rate: float | None = None
    canary_fault_rate: float | None = None
    latency_ratio: float | None = None
    primary_s: HistogramSnapshot | None = None
    canary_s: HistogramSnapshot | None = None


def figures_of(tallies: Mapping[str, Tally] | Sequence[Tally]) -> Figures:
    """Returns the figures of one tally or of several together."""
    each = list(tallies.values()) if isinstance(tallies, Mapping) else list(tallies)

    def total(name: str) -> int:
        return sum(int(getattr(tally, name)) for tally in each)

    num_primary, num_canary = total("num_primary"), total("num_canary")
    num_faults = total("num_canary_faults") + _excess(
        total("num_canary_disputed"),
        total("num_canary_split"),
        total("num_primary_disputed"),
        total("num_primary_split"),
    )
    primary_s = _sum([tally.primary_s.snapshot() for tally in each])
    canary_s = _sum([tally.canary_s.snapshot() for tally in each])
    num_elements = total("num_elements")
    sum_abs_diff = sum(tally.sum_abs_diff for tally in each)
    return Figures(
        num_samples=num_canary,
        num_pairs=total("num_pairs"),
        num_rows=total("num_pair_rows"),
        num_incomparable=total("num_incomparable"),
        max_abs_diff=max(tally.max_abs_diff for tally in each)
        if num_elements
        else None,
        mean_abs_diff=_ratio(sum_abs_diff, num_elements),
        top1_disagreement=_ratio(total("num_disagreeing"), total("num_class_rows")),
        primary_error_rate=_ratio(total("num_primary_errors"), num_primary),
        canary_error_rate=_ratio(total("num_canary_errors"), num_canary),
        canary_fault_rate=_ratio(num_faults, num_canary),
        latency_ratio=_ratio(canary_s.mean, primary_s.mean)
        if canary_s.num and primary_s.num
        else None,
        primary_s=primary_s,
        canary_s=canary_s,
    )


def _excess(
    canary_disputed: int, num_canary: int, primary_disputed: int, num_primary: int
) -> float:
    """Returns how many of the canary's disputed errors are no callers' fault.

    Callers make mistakes and give up with either version. What the canary has of that
    beyond the primary's share, and beyond what chance could do, is its own.
    """
    if not num_canary or not num_primary:
        return 0.0
    share = (canary_disputed + primary_disputed) / (num_canary + num_primary)
    deviation = math.sqrt(share * (1 - share) * (1 / num_canary + 1 / num_primary))
    expected = primary_disputed / num_primary + _CHANCE_DEVIATIONS * deviation
    return max(0.0, canary_disputed - num_canary * expected)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _sum(snapshots: Sequence[HistogramSnapshot]) -> HistogramSnapshot:
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    for snapshot in snapshots:
        for index, count in enumerate(snapshot.counts):
            counts[index] += count
    total = sum(snapshot.total for snapshot in snapshots)
    return HistogramSnapshot(LATENCY_BOUNDS_S, tuple(counts), total)
