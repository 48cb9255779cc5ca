"""Who joins a running batch between two stages, by each rule."""

from __future__ import annotations

import itertools
import math
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from tfs.runtime.guest.layered.rules import (
    GREEDY,
    Boundary,
    FluidLookAhead,
    Lbci,
    Rule,
)
from tfs.runtime.guest.layered.simulation import Arrival, candidates, simulate
from tfs.runtime.guest.layered.stage_times import StageTimes

RULE = FluidLookAhead()

# Fixed milliseconds of each of four layers, and what a row costs in each.
HEAVY_END = ((0, 1), (0, 1), (10, 0.1), (10, 0.1))
EVEN = ((1, 5), (1, 5), (1, 5), (1, 5))
HEAVY_START = ((10, 0.1), (10, 0.1), (0, 1), (0, 1))


def table(shape: tuple[tuple[float, float], ...], max_rows: int = 16) -> StageTimes:
    times = StageTimes(len(shape), max_rows)
    for layer, (fixed, per_row) in enumerate(shape):
        for rows in (1, 2, 4, 8, 16):
            times.put(layer, rows, (fixed + per_row * rows) / 1e3)
    times.begin()
    return times


def test_calls_join_before_layers_that_cost_the_same_for_all() -> None:
    """Two wide layers behind two cheap ones: everybody who waits comes along."""
    assert RULE.rows_to_join(table(HEAVY_END), Boundary(2, 2, [1, 1, 2])) == 4
    assert RULE.rows_to_join(table(HEAVY_END), Boundary(1, 2, [1])) == 1


@pytest.mark.parametrize("shape", [EVEN, HEAVY_START])
def test_nobody_joins_where_those_that_run_would_wait_in_vain(
    shape: tuple[tuple[float, float], ...],
) -> None:
    """What LBCI itself does not ask: joining is possible, and makes all later."""
    for layer in (1, 2, 3):
        assert RULE.rows_to_join(table(shape), Boundary(layer, 4, [1, 1])) == 0


def test_a_deadline_that_would_be_met_is_met() -> None:
    """Those that run come first; one that is lost anyway binds nobody."""
    times = table(HEAVY_END)
    alone_s = times.from_s(2, 2)
    assert RULE.rows_to_join(times, Boundary(2, 2, [1, 1], alone_s * 1.01)) == 0
    assert RULE.rows_to_join(times, Boundary(2, 2, [1, 1], alone_s * 0.99)) == 2
    assert RULE.rows_to_join(times, Boundary(2, 2, [1, 1], math.inf)) == 2


def test_nobody_joins_where_making_one_batch_of_two_costs_more() -> None:
    """Large activations are copied for everybody who runs."""
    times = table(HEAVY_END)
    times.note_join(2, 4, 0.001)
    assert RULE.rows_to_join(times, Boundary(2, 2, [1, 1])) == 2
    times = table(HEAVY_END)
    times.note_join(2, 4, 0.02)
    assert RULE.rows_to_join(times, Boundary(2, 2, [1, 1])) == 0


def test_nobody_joins_before_layers_were_measured() -> None:
    """A guess would cost those that run."""
    assert RULE.rows_to_join(StageTimes(4, 16), Boundary(2, 2, [1, 1])) == 0


def arrivals(rate: float, num: int = 3000, seed: int = 7) -> list[Arrival]:
    dice = random.Random(seed)
    times_s = itertools.accumulate(dice.expovariate(rate) for _ in range(num))
    return [Arrival(at_s) for at_s in times_s]


@pytest.mark.parametrize(
    ("shape", "most"), [(HEAVY_END, 0.95), (EVEN, 1.02), (HEAVY_START, 1.02)]
)
def test_callers_wait_less_where_it_pays_and_no_longer_elsewhere(
    shape: tuple[tuple[float, float], ...], most: float
) -> None:
    """Against a batch of whatever waits, over loads from a fifth to four fifths."""
    times = table(shape)
    ratios = []
    for load in (0.2, 0.5, 0.8):
        coming = arrivals(load * times.best_rate)
        joined_s = simulate(times, coming, FluidLookAhead()).mean_s
        ratios.append(joined_s / simulate(times, coming, GREEDY).mean_s)
    assert max(ratios) <= 1.02
    assert math.prod(ratios) ** (1 / 3) <= most


def test_lbci_joins_once_and_within_its_bound() -> None:
    """The bound counts from the arrival of whoever has waited longest."""
    times = table(HEAVY_END)
    alone_s = times.from_s(2, 1)
    rule = Lbci(alone_s * 1.5)
    assert rule.rows_to_join(times, Boundary(2, 1, [1, 1])) == 2
    assert rule.rows_to_join(times, Boundary(2, 1, [1], oldest_s=alone_s)) == 0
    assert rule.rows_to_join(times, Boundary(2, 1, [1], waited_s=alone_s)) == 0
    assert rule.rows_to_join(times, Boundary(2, 1, [1], num_joins=1)) == 0


@pytest.mark.parametrize("in_rows", [3, 4, 5])
def test_a_tight_bound_does_not_collapse_lbci(in_rows: int) -> None:
    """A bound of a few times one row's time leaves batches large enough to keep up."""
    times = table(((1, 0.2), (5, 0.2), (10, 0.2)), 32)
    bound_s = in_rows * times.total_s(1)
    coming = arrivals(0.8 * times.best_rate)

    def goodput(rule: Rule) -> int:
        latencies = simulate(times, coming, rule).latencies_s
        return sum(took_s <= bound_s for took_s in latencies)

    assert goodput(Lbci(bound_s)) >= 0.95 * goodput(GREEDY)


@hypothesis.given(
    shape=st.lists(
        st.tuples(st.floats(0, 20), st.floats(0.01, 5)), min_size=2, max_size=6
    ),
    waiting=st.lists(st.integers(1, 5), max_size=30),
    running=st.integers(1, 16),
    data=st.data(),
)
def test_every_rule_keeps_to_whole_requests_rows_and_promises(
    shape: list[tuple[float, float]],
    waiting: list[int],
    running: int,
    data: st.DataObject,
) -> None:
    """What joins is a prefix of who waits, fits, and makes nobody late who would not be."""
    times = table(tuple(shape))
    stage = data.draw(st.integers(1, len(shape) - 1))
    alone_s = times.from_s(stage, running)
    left_s = data.draw(st.sampled_from([math.inf, 2 * alone_s, 1.01 * alone_s]))
    at = Boundary(stage, running, waiting, left_s, rate=data.draw(st.floats(0, 1e3)))
    for rule in candidates(times):
        rows = rule.rows_to_join(times, at)
        assert rows in (0, *itertools.accumulate(waiting))
        assert running + rows <= times.max_rows
        if rows:
            together_s = times.until_s(stage, rows) + times.from_s(
                stage, running + rows
            )
            assert together_s <= left_s
