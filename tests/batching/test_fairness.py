"""What queues get when they want more than there is, under a virtual clock."""

from __future__ import annotations

from dataclasses import replace

from batching.batch import Batch
from batching.batching_options import QueuePolicy
from batching.cost_table import CostTable
from batching.deadline_window import WindowOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask
from tests.batching.simulation import (
    Arrival,
    Result,
    SimulatedDevice,
    VirtualClock,
    poisson,
    quantile,
    simulate,
)
from tfs.core.batch.batch_queue_options import BatchQueueOptions

# Milliseconds of AlexNet by batch size, as measured once: enough to be lifelike.
ALEXNET_MS = {1: 30.0, 2: 40.9, 4: 78.7, 8: 135.0, 12: 193.0, 16: 215.0, 32: 393.0}
TABLE = {rows: ms / 1e3 for rows, ms in ALEXNET_MS.items()}
CAPACITY = max(rows / seconds for rows, seconds in TABLE.items())


def run(arrivals: list[Arrival], num_queues: int = 1, **policy: object) -> list[Result]:
    clock = VirtualClock()
    costs = CostTable(TABLE)

    def service_s(batch: Batch[FakeTask]) -> float:
        return costs.predict_s(batch.padded_rows)

    device = SimulatedDevice(clock, service_s)
    scheduler = SharedBatchScheduler(clock=clock)
    queues = [
        scheduler.add_queue(
            device,
            BatchQueueOptions(max_batch_rows=32, max_rows=128),
            QueuePolicy(**policy),  # type: ignore[arg-type]
            costs=CostTable(TABLE),
        )
        for _ in range(num_queues)
    ]
    results = simulate(scheduler, queues, device, clock, arrivals)
    assert len(results) == len(arrivals)
    return results


def latencies(results: list[Result], queue_index: int) -> list[float]:
    return [
        result.latency_s
        for result in results
        if result.arrival.queue_index == queue_index and result.error is None
    ]


def test_an_overloaded_neighbour_costs_at_most_one_batch_more() -> None:
    """With one queue at ten times the capacity, the other's p99 stays within 1.5 times
    its solo p99 and one maximal batch of the neighbour.
    """
    light = poisson(0.1 * CAPACITY, 400, 1)
    until_s = light[-1].when_s
    heavy = [
        replace(arrival, queue_index=1)
        for arrival in poisson(10 * CAPACITY, int(10 * CAPACITY * until_s), 2)
    ]
    solo = quantile(latencies(run(light), 0), 0.99)
    shared = quantile(latencies(run([*light, *heavy], num_queues=2), 0), 0.99)
    assert shared <= 1.5 * (solo + TABLE[32])


def test_deadlines_are_met_in_overload() -> None:
    """The window keeps most requests on time where first come, first served keeps
    none.
    """
    arrivals = poisson(1.3 * CAPACITY, 2000, 5, slack_s=16 * TABLE[1])
    served = sum(result.is_good for result in run(arrivals)) / 2000
    window = run(arrivals, window=WindowOptions())
    kept = sum(result.is_good for result in window) / 2000
    assert kept >= 0.65
    assert served <= kept / 1.5
