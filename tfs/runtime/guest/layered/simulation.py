"""What a rule would have made of some arrivals, if every stage took what its table says."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfs.runtime.guest.layered.rules import Boundary, Greedy, Rule
from tfs.runtime.guest.layered.stage_times import StageTimes

_PACE_EVERY = 64


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
    noise: float = 0.0,
) -> Simulated:
    """Returns what ``rule`` would have made of ``arrivals``.

    Args:
        times: The table; requires ``are_known``.
        arrivals: In order, none with more than ``times.max_rows`` rows.
        rule: The rule.
        pace: Called now and then, so that others get on.
        took: Returns how long a stage takes for some rows, padding included, where that
            is not what the table says.
        noise: By how much, as a share, whole runs take more or less than the table says:
            arrivals that come evenly would else meet the same boundary for ever.

    """
    num, coming = len(arrivals), 0
    waiting: deque[int] = deque()  # indexes of arrivals
    latencies = [0.0] * num
    rate = Rate()
    dice = random.Random(1)
    most = rule.most_rows(times)
    never_joins = isinstance(rule, Greedy) and took is None
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
        factor = 1.0 + noise * dice.uniform(-1.0, 1.0) if noise else 1.0
        running: list[int] = []
        while waiting and (not running or rows + arrivals[waiting[0]].num_rows <= most):
            running.append(waiting.popleft())
            rows += arrivals[running[-1]].num_rows
        if never_joins:
            now_s += factor * times.total_s(rows)
        else:
            oldest_s = arrivals[running[0]].at_s
            for stage in range(times.num_stages):
                if stage and (waiting or coming < num):
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
                        now_s += (
                            times.until_s(stage, joining)
                            if took is None
                            else sum(
                                took(each, times.padded(each, joining))
                                for each in range(stage)
                            )
                        )
                        now_s += times.join_s(stage, rows)
                        while joining > 0:
                            running.append(waiting.popleft())
                            joining -= arrivals[running[-1]].num_rows
                            num_joined += 1
                if took is not None:
                    now_s += took(stage, times.padded(stage, rows))
                else:
                    now_s += factor * times.stage_s(stage, rows)
        for index in running:
            latencies[index] = now_s - arrivals[index].at_s
    return Simulated(tuple(latencies), num_joined)
