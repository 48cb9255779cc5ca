"""What a rule would have made of some arrivals, if every stage took what its table says."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfs.runtime.guest.layered.rules import Boundary, Rule
from tfs.runtime.guest.layered.stage_times import StageTimes

_SPEEDS = (1.0, 1.05, 0.95)
"""A machine drifts: what is best only if it is never a little slower is not chosen."""

_SPEED_EVERY = 500  # stages
_PACE_EVERY = 8  # runs, which take half a millisecond


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
        num_joined: How many joined a running batch.

    """

    latencies_s: tuple[float, ...]
    num_joined: int

    @property
    def mean_s(self) -> float:
        """The mean."""
        return math.fsum(self.latencies_s) / len(self.latencies_s)

    @property
    def p99_s(self) -> float:
        """The time that 99 of 100 do not exceed."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]

    @property
    def score_s(self) -> float:
        """By what rules are compared: the mean, and a little of the tail."""
        return self.mean_s + 0.1 * self.p99_s


class Rate:
    """Rows per second over the last few arrivals."""

    def __init__(self, num: int = 32) -> None:
        self._last: deque[tuple[float, int]] = deque(maxlen=num)
        self._rows = 0

    def note(self, at_s: float, num_rows: int) -> None:
        """Notes an arrival."""
        if len(self._last) == self._last.maxlen:
            self._rows -= self._last[0][1]
        self._last.append((at_s, num_rows))
        self._rows += num_rows

    def read(self, now_s: float) -> float:
        """Returns the rate; 0 until it is known."""
        if len(self._last) < 2:
            return 0.0
        return self._rows / max(now_s - self._last[0][0], 1e-9)


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
    waiting: deque[int] = deque()  # indexes of arrivals
    latencies = [0.0] * num
    rate = Rate()
    stage_s = took or _drawn(times)
    most = rule.most_rows(times)
    now_s, num_joined, num_runs = 0.0, 0, 0

    def look() -> None:
        nonlocal coming
        while coming < num and arrivals[coming].at_s <= now_s:
            rate.note(arrivals[coming].at_s, arrivals[coming].num_rows)
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
                at = Boundary(
                    stage,
                    rows,
                    [arrivals[index].num_rows for index in waiting],
                    oldest_s=now_s - oldest_s,
                    waited_s=now_s - arrivals[waiting[0]].at_s,
                    run_s=now_s - begun_s,
                    num_joins=num_joins,
                    rate=rate.read(now_s),
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
                    num_joined += 1
            now_s += stage_s(stage, rows)
        for index in running:
            latencies[index] = now_s - arrivals[index].at_s
    return Simulated(tuple(latencies), num_joined)


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
