"""Who joins a running batch between two layers: only where time is saved altogether."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tfs.runtime.layer_joining import rows_to_join
from tfs.runtime.layer_times import LayerTimes

# Fixed milliseconds of each of four layers, and what a row costs in each.
HEAVY_END = ((0, 1), (0, 1), (10, 0.1), (10, 0.1))
EVEN = ((1, 5), (1, 5), (1, 5), (1, 5))
HEAVY_START = ((10, 0.1), (10, 0.1), (0, 1), (0, 1))


def table(shape: tuple[tuple[float, float], ...], max_rows: int = 16) -> LayerTimes:
    times = LayerTimes(len(shape), max_rows)
    for layer, (fixed, per_row) in enumerate(shape):
        for rows in (1, 2, 4, 8, 16):
            times.note(layer, rows, (fixed + per_row * rows) / 1e3)
    times.begin()
    return times


def test_calls_join_before_layers_that_cost_the_same_for_all() -> None:
    """Two wide layers behind two cheap ones: everybody who waits comes along."""
    assert rows_to_join(table(HEAVY_END), 2, 2, [1, 1, 2]) == 4
    assert rows_to_join(table(HEAVY_END), 1, 2, [1]) == 1


@pytest.mark.parametrize("shape", [EVEN, HEAVY_START])
def test_nobody_joins_where_those_that_run_would_wait_in_vain(
    shape: tuple[tuple[float, float], ...],
) -> None:
    """What LBCI itself does not ask: joining is possible, and makes all later."""
    for layer in (1, 2, 3):
        assert rows_to_join(table(shape), layer, 4, [1, 1]) == 0


def test_calls_join_whole_and_no_batch_is_larger_than_allowed() -> None:
    """A call that does not fit keeps those behind it waiting, as in the queue."""
    times = table(HEAVY_END, 8)
    assert rows_to_join(times, 2, 4, [3, 3, 1]) == 3
    assert rows_to_join(times, 2, 6, [3, 1]) == 0
    assert rows_to_join(times, 2, 8, [1]) == 0
    assert rows_to_join(times, 2, 2, []) == 0


def test_a_deadline_that_would_be_met_is_met() -> None:
    """Those that run come first; one that is lost anyway binds nobody."""
    times = table(HEAVY_END)
    alone_s = times.from_s(2, 2)
    assert rows_to_join(times, 2, 2, [1, 1], alone_s * 1.01) == 0
    assert rows_to_join(times, 2, 2, [1, 1], alone_s * 0.99) == 2
    assert rows_to_join(times, 2, 2, [1, 1], math.inf) == 2


def test_nobody_joins_where_making_one_batch_of_two_costs_more() -> None:
    """Large activations are copied for everybody who runs."""
    times = table(HEAVY_END)
    times.note_join(2, 4, 0.001)
    assert rows_to_join(times, 2, 2, [1, 1]) == 2
    times = table(HEAVY_END)
    times.note_join(2, 4, 0.02)
    assert rows_to_join(times, 2, 2, [1, 1]) == 0


def test_nobody_joins_before_layers_were_measured() -> None:
    """A guess would cost those that run."""
    assert rows_to_join(LayerTimes(4, 16), 2, 2, [1, 1]) == 0


def mean_latency(times: LayerTimes, rate: float, *, joins: bool) -> float:
    """Returns the mean latency of a simulated device, in seconds."""
    dice = random.Random(7)
    arrivals, now_s = [], 0.0
    for _ in range(3000):
        now_s += dice.expovariate(rate)
        arrivals.append(now_s)
    queue: list[float] = []
    coming = iter(arrivals)
    upcoming = next(coming, math.inf)
    now_s, total_s = 0.0, 0.0
    while queue or upcoming < math.inf:
        now_s = max(now_s, upcoming) if not queue else now_s
        while upcoming <= now_s:
            queue.append(upcoming)
            upcoming = next(coming, math.inf)
        running, queue = queue[: times.max_rows], queue[times.max_rows :]
        for layer in range(times.num_layers):
            if layer and joins:
                while upcoming <= now_s:
                    queue.append(upcoming)
                    upcoming = next(coming, math.inf)
                num = rows_to_join(times, layer, len(running), [1] * len(queue))
                now_s += times.until_s(layer, num) if num else 0.0
                running, queue = running + queue[:num], queue[num:]
            rows = len(running)
            now_s += times.from_s(layer, rows) - (
                times.from_s(layer + 1, rows) if layer + 1 < times.num_layers else 0.0
            )
        total_s += sum(now_s - arrived_s for arrived_s in running)
    return total_s / len(arrivals)


@pytest.mark.parametrize(
    ("shape", "most"), [(HEAVY_END, 0.95), (EVEN, 1.02), (HEAVY_START, 1.02)]
)
def test_callers_wait_less_where_it_pays_and_no_longer_elsewhere(
    shape: tuple[tuple[float, float], ...], most: float
) -> None:
    """Against a batch of whatever waits, over loads from a fifth to four fifths."""
    times = table(shape)
    ratios = [
        mean_latency(times, load * times.best_rate, joins=True)
        / mean_latency(times, load * times.best_rate, joins=False)
        for load in (0.2, 0.5, 0.8)
    ]
    assert max(ratios) <= 1.02
    assert math.prod(ratios) ** (1 / 3) <= most
    assert all(a > 0 for a, _ in itertools.pairwise(ratios))
