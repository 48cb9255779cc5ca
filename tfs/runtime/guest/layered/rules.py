"""Who joins a running batch between two of its stages: pure rules over the table of times.

When requests join, the stages that the batch has already passed are computed for them
first, while the others wait; from there on all go together. LBCI lets as many join as
the time that a user allows permits. That is worse than not joining wherever the fixed
cost of a batch is spread over all stages (transformers take 5 to 13 % longer).
``FluidLookAhead`` therefore asks that it pays: the time that all requests spend, those
that run, join or are left waiting, has to be predicted to fall. It does if the last stages
cost nearly the same for one row as for many, and early in a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tfs.runtime.guest.layered.stage_times import StageTimes

_MARGIN: Final = 1.05
"""Predictions are multiplied by this where a deadline depends on them."""

_SAVES: Final = 0.98
"""The cost of joining has to be less than this share of the cost of not joining."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A batch between two of its stages, and who waits.

    Attributes:
        stage: The stage that comes next, 1 or more.
        running: Rows of the batch.
        waiting: Rows of each request that waits, in order; each joins as a whole.
        left_s: Time until the first deadline of the running requests.
        oldest_s: How long ago the oldest of the running requests came.
        waited_s: How long ago the first of the waiting requests came.
        run_s: How long ago the batch began.
        num_joins: How often others have joined this batch.
        rate: Rows that came per second lately.

    """

    stage: int
    running: int
    waiting: Sequence[int]
    left_s: float = math.inf
    oldest_s: float = 0.0
    waited_s: float = 0.0
    run_s: float = 0.0
    num_joins: int = 0
    rate: float = 0.0


class Rule(Protocol):
    """Decides how batches grow. Immutable; every answer follows from the arguments."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def most_rows(self, times: StageTimes) -> int:
        """Returns with how many rows a batch may begin."""
        ...

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        """Returns how many of the first waiting rows join; 0 for none.

        That is the sum of the first few numbers of ``at.waiting``. Together with those
        that run they are no more than ``times.max_rows``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Greedy:
    """Takes what waits when the device is free; nobody joins later."""

    name: str = "greedy"

    def most_rows(self, times: StageTimes) -> int:
        return times.max_rows

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class FluidLookAhead:
    """Lets join those with whom all requests together are predicted to spend least time.

    After the batch, the next one takes as many of the waiting rows as it can, and the
    rest flows at the best rate. Without counting that rest, requests would join too
    often when many wait.

    Attributes:
        foresight: By how much requests count that will come until the queue is empty, 0
            to 2. Where joining pays, more gains more at a high load; elsewhere more than a
            quarter harms, so that only AUTO uses it.
        most_joins: How often others may join one batch, which has to come to an end.

    """

    foresight: float = 0.0
    most_joins: int = 4

    @property
    def name(self) -> str:
        return f"look-ahead({self.foresight:g}, {self.most_joins})"

    def most_rows(self, times: StageTimes) -> int:
        return times.max_rows

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        if at.num_joins >= self.most_joins or not times.are_known:
            return 0
        if not at.waiting or at.running + at.waiting[0] > times.max_rows:
            return 0
        num_waiting = sum(at.waiting)
        alone_s = times.from_s(at.stage, at.running)
        cost = self._cost(times, at.running, alone_s, num_waiting, at.rate)
        best, least = 0, _SAVES * cost
        for joining, together_s in _together(times, at, alone_s):
            cost = self._cost(
                times, at.running + joining, together_s, num_waiting - joining, at.rate
            )
            if cost < least:
                best, least = joining, cost
        return best

    def _cost(
        self, times: StageTimes, running: int, run_s: float, waiting: int, rate: float
    ) -> float:
        """Returns the time that all rows spend, from now on."""
        batch = min(waiting, times.max_rows)
        rest = waiting - batch
        next_s = run_s + times.total_s(batch)
        empty_s = next_s
        cost = running * run_s + waiting * next_s
        if rest:
            cost += rest * rest / (2 * times.best_rate)
            empty_s += rest / times.best_rate
        return cost + 0.5 * self.foresight * rate * empty_s * empty_s


@dataclass(frozen=True, slots=True)
class Lbci:
    """LBCI with its equations corrected: as many join as a bound on latency permits, once.

    Attributes:
        bound_s: How long a request may take from arrival to answer (``t_opt``).

    """

    bound_s: float

    @property
    def name(self) -> str:
        return f"lbci({self.bound_s * 1e3:.0f} ms)"

    def most_rows(self, times: StageTimes) -> int:
        """Returns the most that meet the bound, but no fewer than keep up at all.

        A bound near the time of one row would otherwise make batches so small that the
        queue grows without end.
        """
        if not times.are_known:
            return times.max_rows
        feasible = efficient = 1
        for rows in range(1, times.max_rows + 1):
            total_s = times.total_s(rows)
            if total_s * (_MARGIN + times.error) <= self.bound_s:
                feasible = rows
            if rows >= 0.95 * times.best_rate * total_s and efficient == 1:
                efficient = rows
        return max(feasible, efficient)

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        if at.num_joins or not times.are_known:
            return 0
        alone_s = times.from_s(at.stage, at.running)
        left_s = self.bound_s - max(at.oldest_s, at.waited_s)
        most = self.most_rows(times) - at.running
        return max(
            (
                joining
                for joining, together_s in _together(times, at, alone_s)
                if joining <= most and together_s * (_MARGIN + times.error) <= left_s
            ),
            default=0,
        )


class PublishedLbci:
    """LBCI as its paper has it, for comparison: equations 1 to 6, once per run.

    Where the text contradicts itself, what its figures fit is taken: the bound of
    equation 2 lies the fluctuation *below* ``t_opt`` (the product would allow three rows),
    and the factor ``b`` of equation 6 is taken once.

    Args:
        times: The table, measured before; it is not updated.
        bound_s: The user's ``t_opt``.
        fluctuation: The largest mean deviation of equation 2, as a share.

    """

    def __init__(
        self, times: StageTimes, bound_s: float, fluctuation: float = 0.05
    ) -> None:
        self._bound_s = bound_s
        self._num_stages = times.num_stages
        sizes = range(1, times.max_rows + 1)
        totals = [times.total_s(rows) for rows in sizes]
        self._fitted = [0.0, *fitted_times(totals)]
        # r[p][q]: share of the first q stages in the time of p rows.
        self._shares: list[list[float]] = [[]] + [
            [
                times.until_s(stage, rows) / total_s
                if stage < times.num_stages
                else 1.0
                for stage in range(times.num_stages + 1)
            ]
            for rows, total_s in zip(sizes, totals, strict=True)
        ]
        strict_s = bound_s * (1 - fluctuation)
        self._most = max(
            (rows for rows in sizes if self._fitted[rows] <= strict_s), default=1
        )

    @property
    def name(self) -> str:
        return f"lbci-as-published({self._bound_s * 1e3:.0f} ms)"

    def predict_s(self, num_rows: int) -> float:
        """Returns the time of some rows by the fitted equation."""
        return self._fitted[num_rows]

    def most_rows(self, times: StageTimes) -> int:
        return self._most

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        # ``1 < k < x``: nobody joins behind the first stage, though that is best.
        if at.num_joins or at.stage < 2 or at.running >= self._most:
            return 0
        joining = 0
        for more in at.waiting:
            rows = joining + more
            both = at.running + rows
            if both >= len(self._fitted):
                break
            all_s = at.waited_s + at.run_s
            all_s += self._fitted[rows] * self._shares[rows][at.stage]
            behind = min(at.stage + 1, self._num_stages)
            all_s += self._fitted[both] * (1 - self._shares[both][behind])
            if all_s >= self._bound_s:
                break
            joining = rows
        return joining


def fitted_times(totals: Sequence[float]) -> list[float]:
    """Returns times of 1, 2, 3, ... rows by equation 6, fitted to measured ones.

    For each of the two parameters that are not linear a grid is tried; the other two
    follow by least squares.
    """
    sizes = range(1, len(totals) + 1)
    measured = [total_s / rows for rows, total_s in zip(sizes, totals, strict=True)]
    least, best = math.inf, list(measured)
    for knee in (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        for steepness in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
            xs = [1 / (1 + (rows / knee) ** steepness) for rows in sizes]
            mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(measured) / len(xs)
            spread = math.fsum((x - mean_x) ** 2 for x in xs) or 1.0
            pairs = zip(xs, measured, strict=True)
            slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
            fitted = [max(0.0, mean_y + slope * (x - mean_x)) for x in xs]
            pairs = zip(fitted, measured, strict=True)
            misfit = math.fsum((f - y) ** 2 for f, y in pairs)
            if misfit < least:
                least, best = misfit, fitted
    return [rows * per_row_s for rows, per_row_s in zip(sizes, best, strict=True)]


def _together(
    times: StageTimes, at: Boundary, alone_s: float
) -> Iterator[tuple[int, float]]:
    """Yields how many rows may join, and how long all of them then take.

    Left out is what would make those that run miss a deadline that they meet alone.
    """
    joining = 0
    for rows in at.waiting:
        joining += rows
        both = at.running + joining
        if both > times.max_rows:
            return
        together_s = times.until_s(at.stage, joining)
        together_s += times.join_s(at.stage, both) + times.from_s(at.stage, both)
        if alone_s <= at.left_s < _MARGIN * together_s:
            continue
        yield joining, together_s
