"""`make bench-batching`: what batching costs, and what it gains.

The scheduler alone is measured in CPU time per task, by closed-loop callers that wait
for asyncio futures and submit the server's own task type. Policies are compared under
a virtual clock: the product's scheduler goes through recorded arrivals, and kernels run
as the policies ask for them, by CPU time. The policies that are compared take turns,
one batch each, and share a pace: a time that a batch has shown to be slow is as slow
for the others, or near saturation, where a few percent of service time
double the queue, noise would decide between them. Loads are fractions of the best rate
in the table of batch sizes, medians measured just before.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from batching import (
    BatchDriver,
    BatchQueue,
    BatchQueueOptions,
    CostTable,
    QueuePolicy,
    SchedulerOptions,
    SharedBatchScheduler,
    WindowOptions,
)
from batching.batch import Batch
from batching.batching_options import BatchingOptions
from tests.batching.chaos import run_chaos
from tests.batching.simulation import (
    Arrival,
    Result,
    SimulatedDevice,
    Simulation,
    VirtualClock,
    poisson,
    quantile,
    simulate,
)
from tests.benchmarks.batched_parts import (
    NUM_CALLERS,
    Decoder,
    Prepared,
    check_answers,
    run_callers,
)
from tests.benchmarks.harness import Area, Report, Sample, interleave, main
from tests.benchmarks.models.alexnet import AlexNet
from tests.benchmarks.models.resnet18 import ResNet18
from tests.benchmarks.one_thread import one_thread
from tests.benchmarks.row import Goal, Row, Series
from tfs.core.dtype import FLOAT32
from tfs.core.errors import ServingError
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.servable import InferenceTask, OneByOne, Outcome, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.servables.joining.batched import BatchedServable

MODELS: Mapping[str, Callable[[], torch.nn.Module]] = {
    "alexnet": AlexNet,
    "resnet18": ResNet18,
}
LOADS = (0.2, 0.5, 0.8, 0.95)
SIZES = (1, 2, 4, 8, 10, 12, 16, 24, 32)
FIXED_BATCH = 10
WINDOW_S = 0.005
NEVER_S = 1e6
PACE_S = 4.0  # of virtual time: a real batch a second took twelve minutes
SLACK_RUNS = 16


def _latency_rows(model: str) -> list[Row]:
    rows = []
    for load in LOADS:
        # Above half load ten at a time has no steady state: printed as unstable.
        goal = Goal("ratio", "<=", 0.35) if load <= 0.5 else None
        what = "mean-vs-fixed-10" if goal else "mean-vs-fixed-10-unstable"
        rows.append(Row(f"batching/{what}/{model}-{load}", "ms", goal))
    for load in LOADS:
        limit = 0.95 if load == 0.2 else 1.02
        rows.append(
            Row(
                f"batching/mean-vs-5ms-window/{model}-{load}",
                "ms",
                Goal("ratio", "<=", limit),
            )
        )
    rows.append(
        Row(
            f"batching/p50-less-0.3ms-vs-direct/{model}-0.1",
            "ms",
            Goal("ratio", "<=", 1.03),
        )
    )
    rows.append(Row(f"batching/wall-mean-vs-5ms-window/{model}-0.5", "ms"))
    return rows


ROWS = (
    Row("batching/core-rate/64-in-flight", "1/s", Goal("value", ">=", 350_000)),
    Row("batching/core-rate/one-caller", "1/s", Goal("value", ">=", 100_000)),
    Row("batching/core-100-queues/64-in-flight", "us", Goal("ratio", "<=", 1.5)),
    Row("batching/core-100-queues/512-in-flight", "us", Goal("ratio", "<=", 1.2)),
    *_latency_rows("alexnet"),
    *_latency_rows("resnet18"),
    Row("batching/deadlines-met/alexnet-0.95", "", Goal("value", ">=", 0.90)),
    Row("batching/deadlines-met/alexnet-1.3", "", Goal("value", ">=", 0.65)),
    Row("batching/deadlines-met-fifo/alexnet-0.95", ""),
    Row("batching/deadlines-met-fifo/alexnet-1.3", ""),
    Row("batching/fairness-p99/10x-neighbour", "ms", Goal("ratio", "<=", 1.5)),
    Row("batching/conservation-lost/million-tasks", "", Goal("value", "<=", 0)),
    Row("batching/conservation-twice/million-tasks", "", Goal("value", "<=", 0)),
    Row("batching/difference/alexnet", "", Goal("value", "<=", 1e-4)),
    Row("batching/same-argmax/alexnet", "", Goal("value", ">=", 0.999)),
    Row("batching/difference/resnet18", "", Goal("value", "<=", 1e-4)),
    Row("batching/same-argmax/resnet18", "", Goal("value", ">=", 0.999)),
    # Shown, without a goal: CPU time per request beside the same model unbatched.
    Row("batching/part-of-a-model/2-ms-python", "ms"),
    Row("batching/part-of-a-model/decode-loop", "ms"),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure; the default is for figures, tests take less."""

    num_core_tasks: int = 20_000
    num_core_rounds: int = 15
    num_arrivals: int = 200  # a multiple of ten: the fixed batch leaves nobody behind
    # Large batches make a queue's course more a matter of chance.
    latency_seeds: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {"alexnet": range(11, 43), "resnet18": range(11, 27)}
    )
    num_deadline_arrivals: int = 2000
    deadline_seeds: Sequence[int] = (1, 2, 3)
    num_table_rounds: int = 5
    num_direct_calls: int = 60
    num_wall_requests: int = 40
    num_wall_rounds: int = 5
    num_chaos_tasks: int = 1_000_000
    num_compared: int = 96
    num_part_requests: int = 160


EFFORT = Effort()


# -- the scheduler alone --------------------------------------------------------


class NoOp:
    """A model that does nothing.

    Its outcomes are not the tasks: a future that held its task, which holds the
    future's ``set_result``, would be a cycle per task for the collector.
    """

    def __init__(self) -> None:
        self._outcomes = [[None] * num for num in range(64)]

    def run(self, batch: Batch[InferenceTask]) -> None:
        batch.done(self._outcomes[len(batch.tasks)])


def core_sample(num_queues: int, num_in_flight: int, num_tasks: int) -> Sample:
    """Returns the CPU time per task with as many closed-loop callers.

    Raises:
        RuntimeError: A task was lost.

    """
    signature = Signature(Method.PREDICT, {}, {})
    per_caller = num_tasks // num_in_flight
    num_done = 0

    async def run_all() -> float:
        loop = asyncio.get_running_loop()
        scheduler = SharedBatchScheduler(SchedulerOptions(max_batches_per_step=1024))
        runner = NoOp()
        queues = [
            scheduler.add_queue(runner, BatchQueueOptions(max_rows=4096))
            for _ in range(num_queues)
        ]
        is_armed = False

        def step() -> None:
            nonlocal is_armed
            is_armed = False
            scheduler.step(time.monotonic())

        async def call(queue: BatchQueue[InferenceTask]) -> None:
            nonlocal is_armed, num_done
            for _ in range(per_caller):
                future: asyncio.Future[object] = loop.create_future()
                deadline_s = time.monotonic() + 1.0
                task = InferenceTask(
                    DEFAULT_SIGNATURE,
                    signature,
                    {},
                    future.set_result,
                    1,
                    (),
                    deadline_s,
                )
                scheduler.submit(queue, task)
                if not is_armed:
                    is_armed = True
                    loop.call_soon(step)
                await future
                num_done += 1

        begun_s = time.process_time()
        await asyncio.gather(
            *[call(queues[index % num_queues]) for index in range(num_in_flight)]
        )
        return time.process_time() - begun_s

    gc.collect()
    elapsed_s = asyncio.run(run_all())
    if num_done != per_caller * num_in_flight:
        raise RuntimeError(f"{num_done} tasks came back")
    return {"cpu_us": elapsed_s / num_done * 1e6}


def measure_core(report: Report) -> None:
    """The scheduler with nothing to schedule for, and the collector as in the server."""
    gc.collect()
    gc.freeze()  # as tfs.server.system.process_settings does: else torch's objects are visited
    try:
        _measure_core(report)
    finally:
        gc.unfreeze()


def _measure_core(report: Report) -> None:
    runs = interleave(
        {
            "1-64": partial(core_sample, 1, 64, EFFORT.num_core_tasks),
            "100-64": partial(core_sample, 100, 64, EFFORT.num_core_tasks),
            "1-512": partial(core_sample, 1, 512, EFFORT.num_core_tasks),
            "100-512": partial(core_sample, 100, 512, EFFORT.num_core_tasks),
            "1-1": partial(core_sample, 1, 1, EFFORT.num_core_tasks),
        },
        num_rounds=EFFORT.num_core_rounds,
    )
    cpu_us = {name: run["cpu_us"] for name, run in runs.items()}
    for name, key in (("64-in-flight", "1-64"), ("one-caller", "1-1")):
        rates = tuple(1e6 / sample for sample in cpu_us[key].samples)
        report.record(f"batching/core-rate/{name}", Series(rates))
    for num in (64, 512):
        report.record(
            f"batching/core-100-queues/{num}-in-flight",
            cpu_us[f"100-{num}"],
            cpu_us[f"1-{num}"],
        )


# -- policies, with real kernels under a virtual clock --------------------------


class Kernel:
    """A model on one thread, and how long its batches take. Random weights, seeded."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(7)
        self.name = name
        self.model = MODELS[name]().eval()
        self.images = torch.randn(max(SIZES), 3, 224, 224)
        self.table: dict[int, float] = {}

    def run_s(self, num_rows: int) -> float:
        """Runs a batch; returns the CPU time it took."""
        x = self.images[:num_rows]
        begun_s = time.thread_time()
        with torch.inference_mode():
            self.model(x)
        return time.thread_time() - begun_s

    def run_at_s(self, num_rows: int, now_s: float) -> float:
        """As ``run_s``, whenever the batch begins."""
        return self.run_s(num_rows)

    def measure_table(self, num_rounds: int) -> None:
        """Measures a batch of every size: medians, for a load is one of every day."""
        samples: dict[int, list[float]] = {size: [] for size in SIZES}
        self.run_s(1)
        for _ in range(num_rounds):
            for size in SIZES:
                samples[size].append(self.run_s(size))
        self.table = {size: statistics.median(s) for size, s in samples.items()}

    @property
    def capacity(self) -> float:
        """The best rows per second."""
        return max(size / seconds for size, seconds in self.table.items())

    @property
    def best_batch_rows(self) -> int:
        best = CostTable(self.table).best_batch_rows()
        assert best is not None
        return best


class Pace:
    """How fast the machine was in each PACE_S of virtual time, by real batches.

    A batch takes what the table says, times the pace of its time: what the first
    batch in it took beside what the table says of that. So a slow moment is slow for
    all policies that are compared, whatever batches they have formed by then. Were
    every batch of each run for itself, the luck of a hundred runs would decide: at 0.8
    load, times that vary by 10 % make a ratio of two equal policies vary by 3 %.
    """

    def __init__(self, table: Mapping[int, float], run_s: Callable[[int], float]):
        self._table = table
        self._costs = CostTable(table)
        self._run_s = run_s
        self._paces: dict[int, float] = {}

    def run_s(self, num_rows: int, now_s: float) -> float:
        """Returns how long a batch of so many rows takes that begins then."""
        when = int(now_s / PACE_S)
        pace = self._paces.get(when)
        if pace is None:
            # Of a size in the table: between sizes it may be wrong by a kernel's step.
            size = min(self._table, key=lambda size: abs(size - num_rows))
            pace = self._paces[when] = self._run_s(size) / self._table[size]
        return pace * self._costs.predict_s(num_rows)


def greedy(kernel: Kernel) -> tuple[BatchQueueOptions, QueuePolicy]:
    """The default: whatever waits goes as soon as the device is idle."""
    options = BatchQueueOptions(max_batch_rows=kernel.best_batch_rows, max_rows=10_000)
    return options, QueuePolicy()


def with_window(kernel: Kernel) -> tuple[BatchQueueOptions, QueuePolicy]:
    options, policy = greedy(kernel)
    return replace(options, timeout_s=WINDOW_S), policy


def fixed(kernel: Kernel) -> tuple[BatchQueueOptions, QueuePolicy]:
    """Ten at a time, however long that takes to gather."""
    options = BatchQueueOptions(
        max_batch_rows=FIXED_BATCH, max_rows=10_000, timeout_s=NEVER_S
    )
    return options, QueuePolicy()


def by_deadline(kernel: Kernel) -> tuple[BatchQueueOptions, QueuePolicy]:
    options, _ = greedy(kernel)
    return replace(options, max_rows=128), QueuePolicy(window=WindowOptions())


Policy = Callable[[Kernel], tuple[BatchQueueOptions, QueuePolicy]]


def simulation_of(
    kernel: Kernel,
    policy: Policy,
    arrivals: Sequence[Arrival],
    run_s: Callable[[int, float], float],
) -> Simulation:
    """A queue of that policy; ``run_s`` tells the time of a batch by rows and start."""
    clock = VirtualClock()
    device = SimulatedDevice(clock, lambda batch: run_s(batch.padded_rows, clock.now_s))
    scheduler = SharedBatchScheduler(clock=clock)
    options, queue_policy = policy(kernel)
    queue = scheduler.add_queue(
        device, options, queue_policy, costs=CostTable(kernel.table)
    )
    return Simulation(scheduler, [queue], device, clock, arrivals)


def run_in_turn(simulations: Mapping[str, Simulation]) -> dict[str, list[Result]]:
    """Runs simulations side by side, a batch each in turn."""
    running = dict(simulations)
    while running:
        for name in list(running):
            if not running[name].run_batch():
                del running[name]
    return {name: simulation.results for name, simulation in simulations.items()}


def mean_ms(results: Sequence[Result]) -> float:
    failed = [result.error for result in results if result.error is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    return statistics.fmean(result.latency_s for result in results) * 1e3


def measure_latencies(name: str, report: Report) -> None:
    """One model at each load, and by the wall clock at one."""
    with one_thread():
        kernel = Kernel(name)
        for load in LOADS:
            kernel.measure_table(EFFORT.num_table_rounds)
            seeds = EFFORT.latency_seeds[name]
            # Chance has little to say where queues are short.
            seeds = seeds[:6] if load <= 0.5 else seeds
            means = mean_by_policy_ms(kernel, load, seeds)
            what = "mean-vs-fixed-10" + ("" if load <= 0.5 else "-unstable")
            report.record(
                f"batching/{what}/{name}-{load}", means["greedy"], means["fixed"]
            )
            report.record(
                f"batching/mean-vs-5ms-window/{name}-{load}",
                means["greedy"],
                means["window"],
            )
        measure_lone_requests(kernel, report)
        measure_wall(kernel, report)


def mean_by_policy_ms(
    kernel: Kernel, load: float, seeds: Sequence[int]
) -> Mapping[str, float]:
    """Returns the mean latency of all requests under each policy."""
    policies: dict[str, Policy] = {
        "greedy": greedy, "fixed": fixed, "window": with_window,
    }  # fmt: skip
    found: dict[str, list[Result]] = {key: [] for key in policies}
    for seed in seeds:
        arrivals = poisson(load * kernel.capacity, EFFORT.num_arrivals, seed)
        pace = Pace(kernel.table, kernel.run_s)
        results = run_in_turn(
            {
                key: simulation_of(kernel, policy, arrivals, pace.run_s)
                for key, policy in policies.items()
            }
        )
        for key in policies:
            found[key] += results[key]
    return {key: mean_ms(results) for key, results in found.items()}


def measure_lone_requests(kernel: Kernel, report: Report) -> None:
    """At a tenth of the load: what a request takes beside a direct call, in turn."""
    arrivals = poisson(0.1 * kernel.capacity, EFFORT.num_direct_calls, seed=12)
    simulation = simulation_of(kernel, greedy, arrivals, kernel.run_at_s)
    direct_s = []
    while simulation.run_batch():
        direct_s.append(kernel.run_s(1))
    p50_s = statistics.median(result.latency_s for result in simulation.results)
    report.record(
        f"batching/p50-less-0.3ms-vs-direct/{kernel.name}-0.1",
        p50_s * 1e3 - 0.3,
        statistics.median(direct_s) * 1e3,
    )


def measure_wall(kernel: Kernel, report: Report) -> None:
    """Half load in real time, through the library's driver, segment by segment."""

    def segment(policy: Policy, seed: int) -> float:
        options, queue_policy = policy(kernel)
        arrivals = poisson(0.5 * kernel.capacity, EFFORT.num_wall_requests, seed)
        latencies_s: list[float] = []

        def compute(items: Sequence[int]) -> Sequence[int]:
            kernel.run_s(len(items))
            return items

        with BatchDriver() as driver:
            queue = driver.add_queue(compute, options, queue_policy)
            begun_s = time.monotonic()
            futures: list[Future[int]] = []

            def note(sent_s: float, _: Future[int]) -> None:
                latencies_s.append(time.monotonic() - sent_s)

            for arrival in arrivals:
                time.sleep(max(0.0, begun_s + arrival.when_s - time.monotonic()))
                sent_s = time.monotonic()
                future = queue.submit(0)
                future.add_done_callback(partial(note, sent_s))
                futures.append(future)
            for future in futures:
                future.result(timeout=120)
        return statistics.fmean(latencies_s) * 1e3

    pairs = [
        (segment(greedy, seed), segment(with_window, seed))
        for seed in range(EFFORT.num_wall_rounds)
    ]
    report.record(
        f"batching/wall-mean-vs-5ms-window/{kernel.name}-0.5",
        Series(tuple(pair[0] for pair in pairs)),
        Series(tuple(pair[1] for pair in pairs)),
    )


def measure_deadlines(report: Report) -> None:
    """Requests that must be answered within 16 single runs; shed ones are missed."""
    met: dict[tuple[str, float], list[float]] = {}
    with one_thread():
        kernel = Kernel("alexnet")
        for seed in EFFORT.deadline_seeds:
            for load in (0.95, 1.3):
                # Minutes pass, and the load is one of the machine as it is now.
                kernel.measure_table(EFFORT.num_table_rounds)
                slack_s = SLACK_RUNS * kernel.table[1]
                arrivals = poisson(
                    load * kernel.capacity,
                    EFFORT.num_deadline_arrivals,
                    seed,
                    slack_s=slack_s,
                )
                run_s = Pace(kernel.table, kernel.run_s).run_s
                simulations = {"": simulation_of(kernel, by_deadline, arrivals, run_s)}
                if ("-fifo", load) not in met:  # once will do, without a goal
                    plain = [replace(each, deadline_s=None) for each in arrivals]
                    simulations["-fifo"] = simulation_of(kernel, greedy, plain, run_s)
                for key, results in run_in_turn(simulations).items():
                    met.setdefault((key, load), []).append(share_met(results, slack_s))
    for (key, load), shares in met.items():
        report.record(
            f"batching/deadlines-met{key}/alexnet-{load}", Series(tuple(shares))
        )


def share_met(results: Sequence[Result], slack_s: float) -> float:
    good = [r for r in results if r.error is None and r.latency_s <= slack_s]
    return len(good) / len(results)


def measure_fairness(report: Report) -> None:
    """A light queue beside one at ten times what the device can do."""
    with one_thread():
        kernel = Kernel("alexnet")
        kernel.measure_table(EFFORT.num_table_rounds)
    shared_ms, solo_ms = [], []
    for seed in EFFORT.deadline_seeds:
        light = poisson(0.1 * kernel.capacity, 4 * EFFORT.num_arrivals, seed)
        num_heavy = int(10 * kernel.capacity * light[-1].when_s)
        heavy = [
            replace(arrival, queue_index=1)
            for arrival in poisson(10 * kernel.capacity, num_heavy, seed + 100)
        ]
        maximal_s = kernel.table[kernel.best_batch_rows]
        solo_ms.append((light_p99_s(kernel, light) + maximal_s) * 1e3)
        shared_ms.append(light_p99_s(kernel, [*light, *heavy]) * 1e3)
    report.record(
        "batching/fairness-p99/10x-neighbour",
        Series(tuple(shared_ms)),
        Series(tuple(solo_ms)),
    )


def light_p99_s(kernel: Kernel, arrivals: Sequence[Arrival]) -> float:
    """Returns the p99 of queue 0; batches take what the table says."""
    clock = VirtualClock()
    costs = CostTable(kernel.table)
    device = SimulatedDevice(clock, lambda batch: costs.predict_s(batch.padded_rows))
    scheduler = SharedBatchScheduler(clock=clock)
    options = BatchQueueOptions(max_batch_rows=kernel.best_batch_rows, max_rows=320)
    queues = [scheduler.add_queue(device, options) for _ in range(2)]
    results = simulate(scheduler, queues, device, clock, arrivals)
    return quantile([r.latency_s for r in results if not r.arrival.queue_index], 0.99)


# -- what must hold whatever the speed -------------------------------------------


def measure_conservation(report: Report) -> None:
    """Cancels, deadlines, failures, removals: each task ends once."""
    num_submitted = num_ended = num_twice = 0
    seed = 0
    while num_submitted < EFFORT.num_chaos_tasks:
        seed += 1
        ledger = run_chaos(seed, min(10_000, EFFORT.num_chaos_tasks))
        num_twice += ledger.num_twice
        num_submitted += ledger.num_submitted
        num_ended += ledger.num_ended
    report.record(
        "batching/conservation-lost/million-tasks", float(num_submitted - num_ended)
    )
    report.record("batching/conservation-twice/million-tasks", float(num_twice))


class InPlace(OneByOne):
    """A servable that runs a kernel's model where it is called."""

    def __init__(self, kernel: Kernel) -> None:
        self.id = ServableId(kernel.name, 1)
        image = TensorSpec(FLOAT32, (-1, 3, 224, 224))
        scores = TensorSpec(FLOAT32, (-1, 1000))
        signature = Signature(Method.PREDICT, {"x": image}, {"y": scores})
        self.signatures = {DEFAULT_SIGNATURE: signature}
        self._model = kernel.model

    def submit(self, task: InferenceTask) -> None:
        view = task.inputs["x"]
        x = torch.frombuffer(bytearray(view.data), dtype=torch.float32)  # type: ignore[arg-type]
        with torch.inference_mode():
            y = self._model(x.reshape(view.shape))
        data = y.contiguous().numpy().tobytes()
        task.on_done({"y": TensorView(FLOAT32, tuple(y.shape), data)})


def measure_equality(name: str, report: Report) -> None:
    """Outputs of rows that were joined, split and padded, beside each row alone."""
    with one_thread():
        torch.manual_seed(3)
        kernel = Kernel(name)
        images = torch.randn(EFFORT.num_compared, 3, 224, 224)
        with torch.inference_mode():
            alone = torch.cat([kernel.model(image[None]) for image in images])
        joined = through_batches(kernel, images)
    scale = alone.abs().amax(1, keepdim=True)
    difference = float(((joined - alone).abs() / scale).max())
    same = float((joined.argmax(1) == alone.argmax(1)).float().mean())
    report.record(f"batching/difference/{name}", difference)
    report.record(f"batching/same-argmax/{name}", same)


def through_batches(kernel: Kernel, images: torch.Tensor) -> torch.Tensor:
    loop = ServingLoop()
    scheduler = SharedBatchScheduler()
    loop.add_round_hook(scheduler.step, Phase.SCHEDULE)
    loop.step()
    options = BatchingOptions(
        queue=BatchQueueOptions(
            max_batch_rows=16, allowed_rows=(4, 16), splits=True, max_rows=10_000
        ),
        batches_unproven=True,
    )
    servable = BatchedServable(InPlace(kernel), scheduler, loop, options)
    rng = random.Random(5)
    told: list[list[Outcome]] = []
    start = 0
    while start < len(images):
        stop = min(len(images), start + rng.randint(1, 6))
        rows = images[start:stop].contiguous()
        view = TensorView(FLOAT32, tuple(rows.shape), rows.numpy().tobytes())
        outcomes: list[Outcome] = []
        told.append(outcomes)
        inputs: Tensors = {"x": view}
        servable.submit(
            InferenceTask(
                DEFAULT_SIGNATURE,
                servable.signatures[DEFAULT_SIGNATURE],
                inputs,
                outcomes.append,
                num_rows=stop - start,
            )
        )
        start = stop
        if rng.random() < 0.2:
            loop.step()
    while not all(told):
        loop.step()
    loop.close()
    values = array("f")
    for (outcome,) in told:
        assert not isinstance(outcome, ServingError), outcome
        values.frombytes(bytes(outcome["y"].data))  # type: ignore[arg-type]
    return torch.tensor(values).reshape(len(images), -1)


def measure_alexnet(report: Report) -> None:
    """Weights dominate: a batch of ten takes as long as five alone."""
    measure_latencies("alexnet", report)


def measure_resnet18(report: Report) -> None:
    """Arithmetic dominates: batches gain a quarter at most."""
    measure_latencies("resnet18", report)


def compare_outputs(report: Report) -> None:
    """Both models, through the server's own path."""
    for name in MODELS:
        measure_equality(name, report)


def measure_parts(report: Report) -> None:
    """Sixteen requests at once, with and without batching the part that gains."""
    with one_thread():
        prepared, decoder = Prepared(), Decoder()
        for model in (prepared, decoder):
            check_answers(model.alone, model.joined, range(NUM_CALLERS))
        num = EFFORT.num_part_requests
        runs = interleave(
            {
                f"{name} {way}": partial(run_callers, getattr(model, way), num)
                for name, model in (("2-ms-python", prepared), ("decode-loop", decoder))
                for way in ("joined", "alone")
            }
        )
    for name in ("2-ms-python", "decode-loop"):
        report.record(
            f"batching/part-of-a-model/{name}",
            runs[f"{name} joined"]["cpu_ms"],
            runs[f"{name} alone"]["cpu_ms"],
        )


AREA = Area(
    "batching",
    ROWS,
    # The longest last: on a slow machine they are what the time limit may cut.
    (
        measure_core,
        measure_conservation,
        compare_outputs,
        measure_parts,
        measure_fairness,
        measure_alexnet,
        measure_deadlines,
        measure_resnet18,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(AREA))
