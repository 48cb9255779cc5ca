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
from typing import Final

from tfs.runtime.guest.layered.stage_times import StageTimes

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


@dataclass(frozen=True)
class Rule:
    """Decides how batches grow; this one takes what waits, and nobody joins later.

    Immutable; every answer follows from the arguments.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        return "greedy"

    def most_rows(self, times: StageTimes) -> int:
        """Returns with how many rows a batch may begin."""
        return times.best_rows

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        """Returns how many of the first waiting rows join; 0 for none.

        That is the sum of the first few numbers of ``at.waiting``. Together with those
        that run they are no more than ``times.max_rows``.
        """
        return 0


GREEDY: Final = Rule()


@dataclass(frozen=True)
class FluidLookAhead(Rule):
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

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        if at.num_joins >= self.most_joins or not times.are_known:
            return 0
        num_waiting = sum(at.waiting)
        alone_s = times.from_s(at.stage, at.running)
        cost = self._cost(times, at, 0, alone_s, num_waiting)
        best, least = 0, _SAVES * cost
        for joining, together_s in _together(times, at, alone_s):
            cost = self._cost(times, at, joining, together_s, num_waiting - joining)
            if cost < least:
                best, least = joining, cost
        return best

    def _cost(
        self, times: StageTimes, at: Boundary, joining: int, run_s: float, waiting: int
    ) -> float:
        batch = min(waiting, times.best_rows)
        rest = waiting - batch
        next_s = run_s + times.total_s(batch)
        cost = (at.running + joining) * run_s + waiting * next_s
        cost += rest * rest / (2 * times.best_rate)
        empty_s = next_s + rest / times.best_rate
        return cost + 0.5 * self.foresight * at.rate * empty_s * empty_s


@dataclass(frozen=True)
class Lbci(Rule):
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
        most = times.best_rows
        for rows in range(most + 1, times.max_rows + 1):
            if times.total_s(rows) * times.margin <= self.bound_s:
                most = rows
        return most

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        if at.num_joins or not times.are_known:
            return 0
        left_s = self.bound_s - max(at.oldest_s, at.waited_s)
        most = self.most_rows(times) - at.running
        alone_s = times.from_s(at.stage, at.running)
        joins = 0
        for joining, together_s in _together(times, at, alone_s):
            if joining <= most and together_s * times.margin <= left_s:
                joins = joining
        return joins


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
        if not alone_s <= at.left_s < times.margin * together_s:
            yield joining, together_s
