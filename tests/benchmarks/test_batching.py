"""The batching area's own logic: do policies meet the same load?"""

from __future__ import annotations

import pytest

from tests.batching.simulation import Arrival
from tests.benchmarks import batching


class Steady(batching.Kernel):
    """Takes a second per batch and two tenths per row, without computing."""

    def __init__(self) -> None:
        self.name = "alexnet"
        self.table = {size: self.run_s(size) for size in batching.SIZES}

    def run_s(self, num_rows: int) -> float:
        return 1.0 + 0.2 * num_rows


def test_policies_meet_the_same_arrivals() -> None:
    """Greedy starts at once, the window after 5 ms, ten at a time when ten are there."""
    kernel = Steady()
    arrivals = [Arrival(10.0 * index) for index in range(10)]
    results = batching.run_in_turn(
        {
            policy.__name__: batching.simulation_of(
                kernel, policy, arrivals, kernel.run_at_s
            )
            for policy in (batching.greedy, batching.with_window, batching.fixed)
        }
    )
    means = {name: batching.mean_ms(found) for name, found in results.items()}
    assert means["greedy"] == pytest.approx(1200)
    assert means["with_window"] == pytest.approx(1205)
    assert means["fixed"] == pytest.approx(45_000 + 3000)


def test_policies_share_the_pace_of_a_moment() -> None:
    """Its first batch is run and tells how slow the others in it are, of any size."""
    runs: list[int] = []

    def run_s(num_rows: int) -> float:
        runs.append(num_rows)
        return {1: 2.0, 4: 4.0}[num_rows]

    pace = batching.Pace({1: 1.0, 4: 4.0}, run_s)
    assert pace.run_s(1, 0.1) == 2.0
    assert pace.run_s(2, batching.PACE_S - 0.1) == 4.0
    assert pace.run_s(3, batching.PACE_S) == 3.0
    assert runs == [1, 4]


def test_shed_requests_count_as_missed() -> None:
    """Giving a request up is no way to meet its deadline."""
    kernel = Steady()
    arrivals = [Arrival(0.001 * index, deadline_s=2.0) for index in range(20)]
    simulation = batching.simulation_of(
        kernel, batching.by_deadline, arrivals, kernel.run_at_s
    )
    while simulation.run_batch():
        pass
    assert batching.share_met(simulation.results, 2.0) < 1.0
    assert len(simulation.results) == 20
