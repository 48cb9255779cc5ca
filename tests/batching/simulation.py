"""Runs a scheduler through recorded arrivals under a virtual clock.

Everything is the product's own code except time: the clock jumps from event to event,
and a batch takes what a function says (a table, or the CPU time of a real kernel that
runs there and then).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from batching.batch import Batch
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.errors import ServingError

_NEVER = float("inf")


class VirtualClock:
    """A clock that stands still until it is set. Confined to one thread."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def wait(self, condition: object, deadline_s: float | None = None) -> None:
        raise NotImplementedError("nothing waits in a simulation")


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """A request: when it comes, to which queue, how large, until when."""

    when_s: float
    queue_index: int = 0
    num_rows: int = 1
    deadline_s: float | None = None


def poisson(
    rate_per_s: float, num: int, seed: int, *, slack_s: float | None = None
) -> list[Arrival]:
    """Returns arrivals at random times, each with a deadline ``slack_s`` later."""
    rng = random.Random(seed)
    now_s = 0.0
    arrivals = []
    for _ in range(num):
        now_s += rng.expovariate(rate_per_s)
        deadline_s = None if slack_s is None else now_s + slack_s
        arrivals.append(Arrival(now_s, deadline_s=deadline_s))
    return arrivals


class SimulatedDevice:
    """A runner whose batches run one after the other; outcomes are the tasks."""

    def __init__(
        self, clock: VirtualClock, service_s: Callable[[Batch[FakeTask]], float]
    ) -> None:
        self._clock = clock
        self._service_s = service_s
        self._free_s = 0.0
        self.num_runs = 0
        self._ends: list[tuple[float, int, Batch[FakeTask]]] = []
        self._sequence = itertools.count()

    def run(self, batch: Batch[FakeTask]) -> None:
        self.num_runs += 1
        start_s = max(self._clock.now_s, self._free_s)
        self._free_s = start_s + self._service_s(batch)
        heapq.heappush(self._ends, (self._free_s, next(self._sequence), batch))

    @property
    def next_end_s(self) -> float:
        return self._ends[0][0] if self._ends else _NEVER

    def end_next(self) -> None:
        batch = heapq.heappop(self._ends)[2]
        batch.done([task.name for task in batch.tasks])


@dataclass(slots=True)
class Result:
    """How one request ended: its latency, and whether it was computed in time."""

    arrival: Arrival
    latency_s: float = float("nan")
    error: ServingError | None = None

    @property
    def is_good(self) -> bool:
        deadline_s = self.arrival.deadline_s
        return self.error is None and (
            deadline_s is None or self.arrival.when_s + self.latency_s <= deadline_s
        )


class Simulation:
    """One scheduler on its way through its arrivals.

    Several may be run in turn, a batch each, so that a machine that changes speed
    changes it for all of them alike.

    Attributes:
        results: In order of arrival, those that came so far.

    """

    def __init__(
        self,
        scheduler: SharedBatchScheduler,
        queues: Sequence[BatchQueue[FakeTask]],
        device: SimulatedDevice,
        clock: VirtualClock,
        arrivals: Iterable[Arrival],
    ) -> None:
        self.results: list[Result] = []
        self._scheduler = scheduler
        self._queues = queues
        self._device = device
        self._clock = clock
        self._pending = iter(sorted(arrivals))
        self._following = next(self._pending, None)
        self._wake_s = _NEVER

    def run_batch(self) -> bool:
        """Goes on until the device was given a batch; False if nothing is left."""
        num_runs = self._device.num_runs
        while self._device.num_runs == num_runs:
            if not self._go_on():
                return False
        return True

    def _go_on(self) -> bool:
        """Jumps to the next event; False if there is none."""
        clock, device, following = self._clock, self._device, self._following
        arrival_s = _NEVER if following is None else following.when_s
        when_s = min(arrival_s, device.next_end_s, self._wake_s)
        if when_s == _NEVER:
            return False
        clock.now_s = max(clock.now_s, when_s)
        if device.next_end_s <= clock.now_s:
            device.end_next()
        while following is not None and following.when_s <= clock.now_s:
            self._submit(following)
            following = self._following = next(self._pending, None)
        wake_s = self._scheduler.step(clock.now_s)
        self._wake_s = _NEVER if wake_s is None else wake_s
        return True

    def _submit(self, arrival: Arrival) -> None:
        result = Result(arrival)
        self.results.append(result)
        task = FakeTask(
            arrival.num_rows,
            deadline_s=arrival.deadline_s,
            on_done=_ends(result, self._clock),
        )
        self._scheduler.submit(self._queues[arrival.queue_index], task)


def simulate(
    scheduler: SharedBatchScheduler,
    queues: Sequence[BatchQueue[FakeTask]],
    device: SimulatedDevice,
    clock: VirtualClock,
    arrivals: Iterable[Arrival],
) -> list[Result]:
    """Runs to the end of everything; returns the results in order of arrival."""
    simulation = Simulation(scheduler, queues, device, clock, arrivals)
    while simulation.run_batch():
        pass
    return simulation.results


def _ends(result: Result, clock: VirtualClock) -> Callable[[Any], None]:
    def on_done(outcome: Any) -> None:
        result.latency_s = clock.now_s - result.arrival.when_s
        if isinstance(outcome, ServingError):
            result.error = outcome

    return on_done


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value that ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
