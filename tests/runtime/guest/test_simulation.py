"""What is simulated of rules, and which of them is chosen by it."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.runtime.guest.stage_tables import times_of
from tfs.core.executor import InlineExecutor
from tfs.runtime.guest.layered.auto import Auto
from tfs.runtime.guest.layered.rules import GREEDY, FluidLookAhead
from tfs.runtime.guest.layered.simulation import (
    Arrival,
    best_rule,
    candidates,
    simulate,
)
from tfs.runtime.guest.layered.stage_times import StageTimes

HEAVY_END = times_of(
    [{r: (fixed + 0.3 * r) / 1e3 for r in (1, 2, 4, 8, 16)} for fixed in (0, 0, 20)], 16
)
HEAVY_START = times_of(
    [{r: (fixed + 0.3 * r) / 1e3 for r in (1, 2, 4, 8, 16)} for fixed in (20, 0, 0)], 16
)


def poisson(rate: float, num: int, seed: int = 1) -> list[Arrival]:
    dice = random.Random(seed)
    times_s = itertools.accumulate(dice.expovariate(rate) for _ in range(num))
    return [Arrival(at_s) for at_s in times_s]


def test_a_lone_request_takes_the_time_of_its_stages() -> None:
    """One that comes while it runs waits for it, unless it joins."""
    total_s = HEAVY_END.total_s(1)
    (alone_s,) = simulate(HEAVY_END, [Arrival(5.0)], GREEDY).latencies_s
    assert alone_s == pytest.approx(total_s)
    two = [Arrival(0.0), Arrival(1e-4)]
    first_s, second_s = simulate(HEAVY_END, two, GREEDY).latencies_s
    assert first_s == pytest.approx(total_s)
    assert second_s == pytest.approx(2 * total_s - 1e-4)
    joined = simulate(HEAVY_END, two, FluidLookAhead())
    assert joined.latencies_s[1] < 0.6 * second_s


def test_every_arrival_is_answered_once_by_every_rule() -> None:
    """Requests of several rows too; none before its own time has passed."""
    coming = [
        Arrival(each.at_s, 1 + index % 5)
        for index, each in enumerate(poisson(200.0, 500))
    ]
    for rule in candidates(HEAVY_END):
        latencies = simulate(HEAVY_END, coming, rule).latencies_s
        assert len(latencies) == len(coming)
        assert min(latencies) >= HEAVY_END.total_s(1) - 1e-9


def test_a_rate_is_that_of_the_last_few_arrivals() -> None:
    """Arrivals from long ago do not count any more."""
    auto = Auto(HEAVY_END, InlineExecutor())
    assert auto.rate(1.0) == 0.0
    for at_s in (0.0, 100.0, 101.0, 102.0, 103.0):
        auto.note_arrival(at_s, 2)
    assert auto.rate(104.0, 4) == pytest.approx(2.0)


def test_a_rule_is_chosen_only_where_it_is_clearly_better() -> None:
    """Joining where the end is costly, and nothing where the costly stages come first."""
    coming = poisson(0.5 * HEAVY_END.best_rate, 1500)
    assert isinstance(best_rule(HEAVY_END, coming, GREEDY), FluidLookAhead)
    coming = poisson(0.5 * HEAVY_START.best_rate, 1500)
    assert best_rule(HEAVY_START, coming, GREEDY) == GREEDY


def serve(auto: Auto, coming: list[Arrival], slowed: float) -> None:
    """Tells of requests that took ``slowed`` times what was simulated of the rule."""
    rule = auto.rule
    took = simulate(HEAVY_END, coming, rule).latencies_s
    for arrival, took_s in zip(coming, took, strict=True):
        auto.begin_run(arrival.at_s, was_idle=True)
        auto.note_arrival(arrival.at_s, arrival.num_rows)
        now_s = arrival.at_s + slowed * took_s
        auto.note_ended(arrival.at_s, arrival.num_rows, now_s)


def test_a_rule_that_falls_behind_its_simulation_gives_way_to_greedy() -> None:
    """What it gained against greedy is known, and so is what it cost."""
    auto = Auto(HEAVY_END, InlineExecutor(), lambda: None)
    coming = poisson(0.5 * HEAVY_END.best_rate, 1500)
    assert auto.rule == GREEDY
    serve(auto, coming[:260], 1.0)
    assert isinstance(auto.rule, FluidLookAhead)
    serve(auto, coming[260:700], 1.0)
    assert isinstance(auto.rule, FluidLookAhead)
    assert 0.02 < auto.gain < 0.5
    serve(auto, coming[700:1140], 1.5)
    assert auto.rule == GREEDY
    assert auto.gain < 0.0


def test_nothing_is_chosen_before_times_and_arrivals_are_known() -> None:
    """Until then every batch takes what waits, and nobody joins."""
    auto = Auto(StageTimes(3, 16), InlineExecutor(), lambda: None)
    serve(auto, poisson(100.0, 400), 1.0)
    assert auto.rule == GREEDY
    auto = Auto(HEAVY_END, InlineExecutor(), lambda: None)
    serve(auto, poisson(100.0, 150), 1.0)
    assert auto.rule == GREEDY
    assert auto.gain == 0.0
