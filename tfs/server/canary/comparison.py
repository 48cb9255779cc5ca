"""Sums up how two versions answered the same requests, and computes figures; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tfs.core.errors import Cancelled, InvalidArgument, OutOfRange, ServingError
from tfs.core.servable import Outcome
from tfs.core.stats import Histogram, HistogramSnapshot, exponential_bounds

if TYPE_CHECKING:
    from tfs.server.canary.difference import Difference

LATENCY_BOUNDS_S: Final = exponential_bounds(0.0001, 2.0, 20)
# A guard judges again and again as requests come. With 2 deviations it would sooner or
# later find a fault in most splits between equal versions.
_CHANCE_DEVIATIONS: Final = 3.0
# Errors that a caller can cause. A deadline that passed often shows as CANCELLED,
# because clients cancel then, which may arrive before the server's own timer fires.
_DISPUTED: Final = (InvalidArgument, OutOfRange, Cancelled)


@dataclass(slots=True)
class Side:
    """The requests that one of the two versions answered. Guarded by its trial's lock.

    Attributes:
        num: All its requests: copies, and its share of a split.
        num_errors: How many of these failed.
        num_split: How many of all were its share of a split.
        num_disputed: How many of the split failed in a way that a caller can cause: the
            request did not fit, the model refused it, or the caller gave up.
        latency_s: Latencies of those that did not fail.

    """

    num: int = 0
    num_errors: int = 0
    num_split: int = 0
    num_disputed: int = 0
    latency_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS_S))
    sum_squares_s2: float = 0.0

    def note(self, outcome: Outcome, latency_s: float) -> None:
        """Counts a request."""
        self.num += 1
        if isinstance(outcome, ServingError):
            self.num_errors += 1
        else:
            self.latency_s.observe(latency_s)
            self.sum_squares_s2 += latency_s * latency_s

    def note_split(self, outcome: Outcome, latency_s: float) -> None:
        """Counts a request of its share of a split."""
        self.note(outcome, latency_s)
        self.num_split += 1
        self.num_disputed += isinstance(outcome, _DISPUTED)


@dataclass(slots=True)
class Tally:
    """The sum of the answers of both versions. Guarded by its trial's lock.

    Attributes:
        primary: The requests of the primary.
        canary: The requests of the canary.
        num_canary_faults: The canary's errors where the primary had none, or in its
            share of a split; disputed ones are not among them.
        num_pairs: Copies that both answered.
        num_pair_rows: Rows of the pairs.
        num_incomparable: Pairs that could not be compared.
        num_class_rows: Rows compared by class; those of incomparable pairs count.
        num_disagreeing: How many of these had another class.
        num_elements: Numbers compared.
        sum_abs_diff: Sum of their absolute differences.
        max_abs_diff: The largest absolute difference.

    """

    primary: Side = field(default_factory=Side)
    canary: Side = field(default_factory=Side)
    num_canary_faults: int = 0
    num_pairs: int = 0
    num_pair_rows: int = 0
    num_incomparable: int = 0
    num_class_rows: int = 0
    num_disagreeing: int = 0
    num_elements: int = 0
    sum_abs_diff: float = 0.0
    max_abs_diff: float = 0.0

    def add_split(self, outcome: Outcome, latency_s: float, *, is_canary: bool) -> None:
        """Adds a request of a split that one of them answered."""
        (self.canary if is_canary else self.primary).note_split(outcome, latency_s)
        if is_canary and isinstance(outcome, ServingError):
            self.num_canary_faults += not isinstance(outcome, _DISPUTED)

    def add_copy(
        self, before: Outcome, before_s: float, outcome: Outcome, latency_s: float
    ) -> None:
        """Adds the outcomes of the primary (``before``) and the canary for one request."""
        self.primary.note(before, before_s)
        self.canary.note(outcome, latency_s)
        if isinstance(outcome, ServingError):
            self.num_canary_faults += not isinstance(before, ServingError)

    def add_pair(self, num_rows: int, found: Difference | None) -> None:
        """Adds a pair of answers; None means that they could not be compared."""
        self.num_pairs += 1
        self.num_pair_rows += num_rows
        if found is None:
            # Outputs of another form count as a different answer in every row.
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
    """The figures of a tally; None is not measured yet. Immutable.

    ``sure_latency_ratio`` is ``latency_ratio`` reduced by what chance could explain: a
    few slow requests among thousands can double the mean of either version.
    """

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
    sure_latency_ratio: float | None = None
    primary_s: HistogramSnapshot | None = None
    canary_s: HistogramSnapshot | None = None


def figures_of(tallies: Sequence[Tally]) -> Figures:
    """Returns the figures of one tally or of several together."""
    primary = [tally.primary for tally in tallies]
    canary = [tally.canary for tally in tallies]
    num_primary = sum(side.num for side in primary)
    num_canary = sum(side.num for side in canary)
    num_faults = sum(tally.num_canary_faults for tally in tallies) + _excess(
        sum(side.num_disputed for side in canary),
        sum(side.num_split for side in canary),
        sum(side.num_disputed for side in primary),
        sum(side.num_split for side in primary),
    )
    primary_s, canary_s = _latency_s(primary), _latency_s(canary)
    latency_ratio = (
        _ratio(canary_s.mean, primary_s.mean)
        if canary_s.num and primary_s.num
        else None
    )
    num_elements = sum(tally.num_elements for tally in tallies)
    return Figures(
        num_samples=num_canary,
        num_pairs=sum(tally.num_pairs for tally in tallies),
        num_rows=sum(tally.num_pair_rows for tally in tallies),
        num_incomparable=sum(tally.num_incomparable for tally in tallies),
        max_abs_diff=max(tally.max_abs_diff for tally in tallies)
        if num_elements
        else None,
        mean_abs_diff=_ratio(
            sum(tally.sum_abs_diff for tally in tallies), num_elements
        ),
        top1_disagreement=_ratio(
            sum(tally.num_disagreeing for tally in tallies),
            sum(tally.num_class_rows for tally in tallies),
        ),
        primary_error_rate=_ratio(
            sum(side.num_errors for side in primary), num_primary
        ),
        canary_error_rate=_ratio(sum(side.num_errors for side in canary), num_canary),
        canary_fault_rate=_ratio(num_faults, num_canary),
        latency_ratio=latency_ratio,
        sure_latency_ratio=None
        if latency_ratio is None
        else latency_ratio
        * (1 - _CHANCE_DEVIATIONS * math.hypot(_spread(canary), _spread(primary))),
        primary_s=primary_s,
        canary_s=canary_s,
    )


def _excess(
    canary_disputed: int, num_canary: int, primary_disputed: int, num_primary: int
) -> float:
    """Returns how many of the canary's disputed errors are not the callers' fault.

    Callers make mistakes and give up with either version. Errors of that kind that
    exceed the primary's share, and what chance could explain, are the canary's own.
    """
    if not num_canary or not num_primary:
        return 0.0
    share = (canary_disputed + primary_disputed) / (num_canary + num_primary)
    deviation = math.sqrt(share * (1 - share) * (1 / num_canary + 1 / num_primary))
    expected = primary_disputed / num_primary + _CHANCE_DEVIATIONS * deviation
    return max(0.0, canary_disputed - num_canary * expected)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _spread(sides: Sequence[Side]) -> float:
    """Returns the standard deviation of a mean latency, as a share of it."""
    num, total_s = 0, 0.0
    for side in sides:
        snapshot = side.latency_s.snapshot()
        num, total_s = num + snapshot.num, total_s + snapshot.total
    if not total_s:
        return 0.0
    squares = sum(side.sum_squares_s2 for side in sides) * num / total_s**2
    return math.sqrt(max(0.0, squares - 1.0) / num)


def _latency_s(sides: Sequence[Side]) -> HistogramSnapshot:
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    total_s = 0.0
    for side in sides:
        snapshot = side.latency_s.snapshot()
        total_s += snapshot.total
        for index, count in enumerate(snapshot.counts):
            counts[index] += count
    return HistogramSnapshot(LATENCY_BOUNDS_S, tuple(counts), total_s)
