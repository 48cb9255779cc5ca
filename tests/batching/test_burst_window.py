"""The first of a burst waits for the others, where that pays."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

import pytest

from batching.burst_window import BurstWindow
from batching.cost_table import CostTable
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask
from tests.batching.simulation import (
    Arrival,
    SimulatedDevice,
    Simulation,
    VirtualClock,
    poisson,
)
from tfs.core.batch.batch_queue_options import BatchQueueOptions

FIXED = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.8, 16: 3.0, 32: 5.5}
"""Times of a model that is much cheaper by the dozen."""

PROPORTIONAL = {rows: 0.1 + 1.0 * rows for rows in (1, 2, 4, 8, 16, 32)}
CAPACITY = 32 / FIXED[32]


def task_at(arrived_s: float) -> FakeTask:
    task = FakeTask()
    task.arrived_s = arrived_s
    return task


def note(window: BurstWindow, start_s: float, *after_s: float) -> None:
    """Notes a request on an idle device, and others that came so much later."""
    others = [task_at(start_s + each) for each in after_s]
    window.note([task_at(start_s)], others, start_s)


def bursts(num: int, rate_per_s: float, seed: int) -> list[Arrival]:
    """Returns arrivals of twenty within two milliseconds, at random times."""
    dice = random.Random(seed)
    now_s = 0.0
    arrivals = []
    for _ in range(num):
        now_s += dice.expovariate(rate_per_s / 20)
        arrivals += [Arrival(now_s + index * 1e-4) for index in range(20)]
    return arrivals


def mean_latency_s(
    table: Mapping[int, float], arrivals: Sequence[Arrival], *, learns: bool
) -> float:
    clock = VirtualClock()
    costs = CostTable(table)
    device = SimulatedDevice(clock, lambda batch: costs.predict_s(batch.padded_rows))
    scheduler = SharedBatchScheduler(clock=clock)
    queue = scheduler.add_queue(
        device,
        BatchQueueOptions(max_rows=100_000),
        costs=CostTable(table) if learns else None,
    )
    simulation = Simulation(scheduler, [queue], device, clock, arrivals)
    while simulation.run_batch():
        pass
    return statistics.fmean(result.latency_s for result in simulation.results)


def test_nobody_waits_who_was_always_alone() -> None:
    """At one request in flight there is no window, however long that goes on."""
    window = BurstWindow(CostTable(FIXED), 32)
    for index in range(50):
        note(window, 10.0 * index)
        assert window.wait_s == 0.0


def test_the_first_waits_for_as_long_as_bursts_took_to_arrive() -> None:
    """Not for a share of the model's time, which is the most that is waited for."""
    window = BurstWindow(CostTable(FIXED), 32)
    for index in range(5):
        note(window, 10.0 * index, 0.001, 0.004, 0.008)
    assert window.wait_s == pytest.approx(0.01)
    for index in range(5):
        note(window, 100.0 + 10.0 * index, 0.01, 0.05, 0.099, 0.5)
    assert window.wait_s == pytest.approx(0.1)


def test_bursts_that_end_are_forgotten_after_a_few_requests() -> None:
    """Who comes alone again soon waits no longer."""
    window = BurstWindow(CostTable(FIXED), 32)
    for index in range(50):
        note(window, 10.0 * index, *[0.09] * 20)
    num_waits = 0
    while window.wait_s:
        num_waits += 1
        note(window, 1000.0 + 10.0 * num_waits)
    assert num_waits <= 6


def test_nobody_waits_where_joining_saves_little() -> None:
    """The first would be computed as late as the last, and nobody earlier."""
    window = BurstWindow(CostTable(PROPORTIONAL), 32)
    for index in range(20):
        note(window, 100.0 * index, *[0.01] * 19)
    assert window.wait_s == 0.0


def test_a_batch_that_waited_for_the_device_shows_no_burst() -> None:
    """Whoever comes while the device is busy is joined without any window."""
    window = BurstWindow(CostTable(FIXED), 32)
    for index in range(20):
        start_s = 10.0 * index
        window.note([task_at(start_s), task_at(start_s + 0.01)], [], start_s + 1.0)
    assert window.wait_s == 0.0


@pytest.mark.parametrize("seed", [1, 2])
def test_bursts_are_computed_together(seed: int) -> None:
    """Callers wait a tenth less than if each burst began with a batch of one."""
    arrivals = bursts(100, 0.2 * CAPACITY, seed)
    learnt_s = mean_latency_s(FIXED, arrivals, learns=True)
    assert learnt_s <= 0.9 * mean_latency_s(FIXED, arrivals, learns=False)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_requests_that_come_by_chance_wait_no_longer(load: float) -> None:
    """Two that come close together are no burst."""
    arrivals = poisson(load * CAPACITY, 1500, 3)
    learnt_s = mean_latency_s(FIXED, arrivals, learns=True)
    assert learnt_s <= 1.02 * mean_latency_s(FIXED, arrivals, learns=False)
