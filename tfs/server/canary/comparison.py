"""How two versions answered the same requests, in figures, and whether a guard ends that; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tfs.core.errors import Cancelled, InvalidArgument, OutOfRange, ServingError
from tfs.core.servable import Outcome
from tfs.core.stats import Histogram, exponential_bounds
from tfs.proto.tfs.v1.admin_service_pb2 import Comparison, GuardReport
from tfs.proto.tfs.v1.model_config_pb2 import Guard
from tfs.server.messages import histogram

if TYPE_CHECKING:
    from tfs.server.canary.difference import Difference

MAX_SPANS: Final = 60
_FIRST_STEP_S: Final = 2.0
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
        latency_s: Histogram of those that did not fail.

    """

    num: int = 0
    num_errors: int = 0
    num_split: int = 0
    num_disputed: int = 0
    latency_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS_S))
    sum_squares_s2: float = 0.0

    def add(self, outcome: Outcome, latency_s: float) -> None:
        """Counts a request."""
        self.num += 1
        if isinstance(outcome, ServingError):
            self.num_errors += 1
        else:
            self.latency_s.observe(latency_s)
            self.sum_squares_s2 += latency_s * latency_s

    @property
    def latency_spread(self) -> float:
        """The standard deviation of the mean latency, as a share of it."""
        found = self.latency_s.snapshot()
        if not found.total:
            return 0.0
        squares = self.sum_squares_s2 * found.num / found.total**2
        return math.sqrt(max(0.0, squares - 1.0) / found.num)


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
        side = self.canary if is_canary else self.primary
        side.add(outcome, latency_s)
        side.num_split += 1
        is_disputed = isinstance(outcome, _DISPUTED)
        side.num_disputed += is_disputed
        if is_canary and isinstance(outcome, ServingError):
            self.num_canary_faults += not is_disputed

    def add_copy(
        self, before: Outcome, before_s: float, outcome: Outcome, latency_s: float
    ) -> None:
        """Adds the outcomes of the primary (``before``) and the canary for one request."""
        self.primary.add(before, before_s)
        self.canary.add(outcome, latency_s)
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

    def figures(self) -> Figures:
        """Returns the figures so far."""
        primary, canary = self.primary, self.canary
        primary_s, canary_s = primary.latency_s.snapshot(), canary.latency_s.snapshot()
        ratio: float | None = None
        sure_ratio: float | None = None
        if canary_s.num and (ratio := _share(canary_s.mean, primary_s.mean)):
            spread = math.hypot(canary.latency_spread, primary.latency_spread)
            sure_ratio = ratio * (1 - _CHANCE_DEVIATIONS * spread)
        num_faults = self.num_canary_faults + _excess(canary, primary)
        shown = Comparison(
            num_requests=self.num_pairs,
            num_rows=self.num_pair_rows,
            num_incomparable=self.num_incomparable,
            max_abs_diff=self.max_abs_diff if self.num_elements else None,
            mean_abs_diff=_share(self.sum_abs_diff, self.num_elements),
            top1_disagreement=_share(self.num_disagreeing, self.num_class_rows),
            primary_error_rate=_share(primary.num_errors, primary.num),
            canary_error_rate=_share(canary.num_errors, canary.num),
            latency_ratio=ratio,
        )
        return Figures(shown, canary.num, _share(num_faults, canary.num), sure_ratio)

    def comparison(self, *, include_latencies: bool) -> Comparison:
        """Returns what reports show of the figures, with histograms of latencies."""
        shown = self.figures().shown
        if include_latencies:
            shown.primary_latency_s.CopyFrom(
                histogram(self.primary.latency_s.snapshot())
            )
            shown.canary_latency_s.CopyFrom(histogram(self.canary.latency_s.snapshot()))
        return shown


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a tally. Immutable.

    Attributes:
        shown: What reports show of them; what is not measured yet is absent.
        num_samples: The canary's requests.
        canary_fault_rate: Share of these that failed by its own fault; None without any.
        sure_latency_ratio: The latency ratio reduced by what chance could explain: a few
            slow requests among thousands can double the mean of either version.

    """

    shown: Comparison
    num_samples: int = 0
    canary_fault_rate: float | None = None
    sure_latency_ratio: float | None = None

    def of_limits(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Yields each limit of a guard, the figure to report and the figure to judge."""
        for name in ("top1_disagreement", "mean_abs_diff"):
            figure = _set(self.shown, name)
            yield f"max_{name}", figure, figure
        ratio = _set(self.shown, "latency_ratio")
        yield "max_latency_ratio", ratio, self.sure_latency_ratio
        yield "max_error_rate", self.canary_fault_rate, self.canary_fault_rate

    def __str__(self) -> str:
        return (
            f"(after {self.num_samples} requests, {self.shown.num_rows} rows compared)"
        )


def _set(shown: Comparison, name: str) -> float | None:
    return getattr(shown, name) if shown.HasField(name) else None


def _excess(canary: Side, primary: Side) -> float:
    """Returns how many of the canary's disputed errors are not the callers' fault.

    Callers make mistakes and give up with either version. Errors of that kind that
    exceed the primary's share, and what chance could explain, are the canary's own.
    """
    if not canary.num_split or not primary.num_split:
        return 0.0
    num = canary.num_split + primary.num_split
    share = (canary.num_disputed + primary.num_disputed) / num
    deviation = math.sqrt(
        share * (1 - share) * (1 / canary.num_split + 1 / primary.num_split)
    )
    expected = primary.num_disputed / primary.num_split
    expected += _CHANCE_DEVIATIONS * deviation
    return max(0.0, canary.num_disputed - canary.num_split * expected)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def judge(guard: Guard, figures: Figures) -> tuple[GuardReport, ...]:
    """Returns every limit that applies, each with its figure, and whether that exceeds it."""
    has_samples = figures.num_samples >= least_samples(guard)
    reports = []
    for name, value, judged in figures.of_limits():
        if guard.HasField(name):
            limit: float = getattr(guard, name)
            # NaN is over any limit.
            exceeded = has_samples and judged is not None and not judged <= limit
            report = GuardReport(name=name, limit=limit, value=value, exceeded=exceeded)
            reports.append(report)
    return tuple(reports)


def least_samples(guard: Guard) -> int:
    """Returns how many samples there must be before a limit applies."""
    return guard.min_samples or 1


def rejection(limits: Sequence[GuardReport], figures: Figures) -> str:
    """Returns why the trial ends, with the numbers; "" if it goes on."""
    over = [_words(each, ">") for each in limits if each.exceeded]
    return f"guard: {', '.join(over)} {figures}" if over else ""


def approval(limits: Sequence[GuardReport], figures: Figures) -> str:
    """Returns what was measured beside the limits that it is within."""
    within = [_words(each, "<=") for each in limits if each.HasField("value")]
    return f"{', '.join(within) or 'nothing to compare'} {figures}"


def _words(limit: GuardReport, relation: str) -> str:
    name = limit.name.removeprefix("max_")
    return f"{name} {limit.value:.4g} {relation} {limit.limit:.4g}"


@dataclass(frozen=True, slots=True)
class TrialSpan:
    """Figures of the requests within some time; None is not measured in it. Immutable.

    Attributes:
        begun_s: When the time began, in seconds since the epoch.
        top1_disagreement: Share of rows with another best class.
        mean_abs_diff: Mean difference over all elements.
        latency_ratio: The canary's mean latency over the primary's.
        canary_error_rate: Share of the canary's requests that failed.

    """

    begun_s: float
    top1_disagreement: float | None
    mean_abs_diff: float | None
    latency_ratio: float | None
    canary_error_rate: float | None


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
