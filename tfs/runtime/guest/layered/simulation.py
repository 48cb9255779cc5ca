"""What a rule would have made of some arrivals, and which rule would have done best. Pure."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tfs.runtime.guest.layered.rules import GREEDY, Boundary, FluidLookAhead, Lbci, Rule
from tfs.runtime.guest.layered.stage_times import StageTimes

OF_RATE: Final = 32
"""Rules go by the rate of so many last arrivals."""

_SPEEDS = (1.0, 1.05, 0.95)
"""A machine drifts: what is best only if it is never a little slower is not chosen."""

_SPEED_EVERY = 500  # stages
_PACE_EVERY = 8  # runs, which take half a millisecond
_BETTER: Final = 0.97  # a rule replaces another only if its score is below this share
_BOUND_ROWS: Final = 16.0  # LBCI's bound, in times of one row, as in its paper


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request came, and with how many rows. Immutable."""

    at_s: float
    num_rows: int = 1


@dataclass(frozen=True, slots=True)
class Simulated:
    """How long the requests took. Immutable.

    Attributes:
        latencies_s: From arrival to answer, in order of arrival.

    """

    latencies_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """The mean."""
        return math.fsum(self.latencies_s) / len(self.latencies_s)

    @property
    def p99_s(self) -> float:
        """The time that 99 of 100 do not exceed."""
        return sorted(self.latencies_s)[math.ceil(0.99 * len(self.latencies_s)) - 1]

    @property
    def score_s(self) -> float:
        """By what rules are compared: the mean, and a little of the tail."""
        return self.mean_s + 0.1 * self.p99_s


def candidates(times: StageTimes) -> list[Rule]:
    """Returns the rules that are compared; the first one never joins."""
    return [
        GREEDY,
        Lbci(_BOUND_ROWS * times.total_s(1)),
        *(
            FluidLookAhead(foresight, most_joins)
            for most_joins in (1, 4)
            for foresight in (0.0, 0.25, 0.5, 1.0, 2.0)
        ),
    ]


def best_rule(
    times: StageTimes,
    arrivals: Sequence[Arrival],
    present: Rule,
    pace: Callable[[], None] = lambda: None,
) -> Rule:
    """Returns the rule with the best score, or ``present`` if none is much better.

    The present rule counts as it would do now.
    """
    rules = dict.fromkeys((*candidates(times), present))
    scores = {rule: simulate(times, arrivals, rule, pace).score_s for rule in rules}
    best = min(scores, key=scores.__getitem__)
    return best if scores[best] < _BETTER * scores[present] else present


def simulate(
    times: StageTimes,
    arrivals: Sequence[Arrival],
    rule: Rule,
    pace: Callable[[], None] = lambda: None,
    took: Callable[[int, int], float] | None = None,
) -> Simulated:
    """Returns what ``rule`` would have made of ``arrivals``.

    Args:
        times: The table; requires ``are_known``.
        arrivals: In order, none with more than ``times.max_rows`` rows.
        rule: The rule.
        pace: Called now and then, so that others get on.
        took: Returns how long a stage takes for some rows. By default that is what the
            table says, and as far off as stages were lately: arrivals that come evenly
            would else meet the same boundary for ever.

    """
    num, coming = len(arrivals), 0
    rows_before = [0, *accumulate(each.num_rows for each in arrivals)]
    waiting: deque[int] = deque()  # indexes of arrivals
    latencies = [0.0] * num
    stage_s = took or _drawn(times)
    most = rule.most_rows(times)
    now_s, num_runs = 0.0, 0

    def look() -> None:
        nonlocal coming
        while coming < num and arrivals[coming].at_s <= now_s:
            waiting.append(coming)
            coming += 1

    while waiting or coming < num:
        if not waiting:
            now_s = max(now_s, arrivals[coming].at_s)
        look()
        num_runs += 1
        if num_runs % _PACE_EVERY == 0:
            pace()
        begun_s, rows, num_joins = now_s, 0, 0
        running: list[int] = []
        while waiting and (not running or rows + arrivals[waiting[0]].num_rows <= most):
            running.append(waiting.popleft())
            rows += arrivals[running[-1]].num_rows
        oldest_s = arrivals[running[0]].at_s
        for stage in range(times.num_stages):
            if stage:
                look()
            if stage and waiting:
                last = max(coming - OF_RATE, 0)
                at = Boundary(
                    stage,
                    rows,
                    [arrivals[index].num_rows for index in waiting],
                    oldest_s=now_s - oldest_s,
                    waited_s=now_s - arrivals[waiting[0]].at_s,
                    run_s=now_s - begun_s,
                    num_joins=num_joins,
                    rate=(rows_before[coming] - rows_before[last])
                    / max(now_s - arrivals[last].at_s, 1e-9),
                )
                joining = rule.rows_to_join(times, at)
                if joining:
                    num_joins += 1
                    rows += joining
                    now_s += sum(stage_s(each, joining) for each in range(stage))
                    now_s += times.join_s(stage, rows)
                while joining > 0:
                    running.append(waiting.popleft())
                    joining -= arrivals[running[-1]].num_rows
            now_s += stage_s(stage, rows)
        for index in running:
            latencies[index] = now_s - arrivals[index].at_s
    return Simulated(tuple(latencies))


def _drawn(times: StageTimes) -> Callable[[int, int], float]:
    """Returns what draws how long stages take, the same for every rule."""
    chance = random.Random(1).random
    errors = tuple(times.errors) or (0.0,)
    num_drawn = 0

    def took(stage: int, num_rows: int) -> float:
        nonlocal num_drawn
        num_drawn += 1
        speed = _SPEEDS[num_drawn // _SPEED_EVERY % len(_SPEEDS)]
        error = errors[int(chance() * len(errors))]
        return speed * (1.0 + error) * times.stage_s(stage, num_rows)

    return took
