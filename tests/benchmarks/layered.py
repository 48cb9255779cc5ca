"""`make bench-layered`: who gains if requests join a batch between two stages.

Every model is cut into stages by the server's own cutter. Its kernels are then run for many
numbers of rows, by the processor time of one thread, which other programs do not change much.
Every other round of them makes the table that is measured before a model serves. The rounds
between are what stages take when recorded arrivals are replayed under a virtual clock: each stage
takes a time that it once took. All ratios are of the same arrivals. The table learns, and AUTO
chooses, while other arrivals of the same kind are served.

The paper's figures 4 to 7 follow, with its traffic scaled to the capacity of this machine, and
what it leaves out: greedy, which takes what waits whenever the device is free.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from batching.length_window import LengthWindow
from tests.benchmarks.harness import Area, Report, main
from tests.benchmarks.layered_wall import served_means
from tests.benchmarks.lengths import BUCKETS, EncoderTimes, length_of
from tests.benchmarks.models.alexnet import AlexNet
from tests.benchmarks.models.resnet18 import ResNet18
from tests.benchmarks.one_thread import one_thread
from tests.benchmarks.published_lbci import PublishedLbci
from tests.benchmarks.row import Goal, Row
from tests.runtime.guest.stage_tables import times_of
from tfs.runtime.guest.layered.cutter import cut
from tfs.runtime.guest.layered.rules import GREEDY, Lbci, Rule
from tfs.runtime.guest.layered.simulation import (
    Arrival,
    Simulated,
    best_rule,
    simulate,
)
from tfs.runtime.guest.layered.stage_times import StageTimes
from tfs.runtime.guest.platforms.torch_callable import Cuttable

MAX_ROWS = 32
LOADS = (0.2, 0.35, 0.5, 0.65, 0.8)
PROCESSES = ("poisson", "regular", "bursts")
PAPER_CAPACITY = 81.5  # requests a second that a machine like the paper's takes
PAPER_TRAFFIC = (20, 40, 60, 80)


def _mlp() -> nn.Module:
    layers = ((nn.Linear(4096, 4096), nn.ReLU()) for _ in range(4))
    return nn.Sequential(*itertools.chain(*layers))


def _encoder() -> nn.Module:
    return nn.Sequential(
        *(nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(6))
    )


def _costly_start() -> nn.Module:
    convolutions = [nn.Conv2d(8, 32, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        convolutions += [nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(
        nn.Linear(4096, 8192),
        nn.ReLU(),
        nn.Linear(8192, 8192),
        nn.ReLU(),
        nn.Unflatten(1, (8, 32, 32)),
        *convolutions,
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is measured, and what is wanted of it."""

    make: Callable[[], nn.Module]
    row_shape: tuple[int, ...]
    mean_goal: float
    dtype: torch.dtype = torch.float32


SUBJECTS: Mapping[str, Subject] = {
    "alexnet": Subject(AlexNet, (3, 224, 224), 0.87),
    "alexnet-bf16": Subject(AlexNet, (3, 224, 224), 0.90, torch.bfloat16),
    "mlp": Subject(_mlp, (4096,), 0.92),
    "encoder": Subject(_encoder, (16, 768), 1.01),
    "resnet18": Subject(ResNet18, (3, 224, 224), 1.01),
    "costly-start": Subject(_costly_start, (4096,), 1.02),
}


def _rows_of(name: str, subject: Subject) -> list[Row]:
    def at_most(limit: float) -> Goal:
        return Goal("value", "<=", limit)

    return [
        Row(f"layered/auto-vs-greedy-mean/{name}", "", at_most(subject.mean_goal)),
        Row(f"layered/auto-vs-greedy-mean-worst/{name}", "", at_most(1.05)),
        Row(f"layered/auto-vs-greedy-p99/{name}", "", at_most(1.10)),
        Row(f"layered/auto-vs-greedy-p99-worst/{name}", "", at_most(1.25)),
        Row(f"layered/auto-vs-lbci-worst/{name}", "", at_most(1.03)),
        Row(f"layered/lbci-vs-greedy-mean/{name}", ""),
        Row(f"layered/table-error-median/{name}", "", at_most(0.10)),
        Row(
            f"layered/lbci-goodput-at-3-to-5-rows/{name}",
            "",
            Goal("value", ">=", 0.95),
        ),
    ]


LENGTH_LOADS = (0.8, 1.2)
LENGTH_ROWS = (
    *(
        Row(f"layered/lengths-vs-{what}/load-{load}", "1/s", Goal("ratio", ">=", limit))
        for what, limit in (("pad-to-longest", 1.3), ("buckets", 1.1))
        for load in LENGTH_LOADS
    ),
    Row(
        "layered/equal-lengths-vs-first-come/load-0.8", "1/s", Goal("ratio", ">=", 0.98)
    ),
)

RULES = ("serial", "batches-of-10", "lbci", "greedy", "auto")
ROWS = (
    *(row for name, subject in SUBJECTS.items() for row in _rows_of(name, subject)),
    *LENGTH_ROWS,
    Row("layered/served-mean-vs-off/alexnet", "ms"),
    Row("layered/figure-4-fit-error/alexnet", ""),
    Row("layered/figure-4-over-bound/alexnet", ""),
    *(
        Row(f"layered/figure-5-{what}-{traffic}/{rule}", unit)
        for what, unit in (("delay", "ms"), ("throughput", "1/s"))
        for traffic in PAPER_TRAFFIC
        for rule in RULES
    ),
    *(Row(f"layered/figure-6-late-at-60/{rule}", "") for rule in RULES),
    *(
        Row(f"layered/figure-7-up-to-{most}/{rule}", "ms")
        for most in (10, 25, 50)
        for rule in RULES
        if rule != "batches-of-10"
    ),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure; the default is for figures, tests take less."""

    sizes: Sequence[int] = (*range(1, 11), 12, 14, 16, 20, 24, 28, 32)
    num_rounds: int = 8
    num_arrivals: int = 3000
    seeds: Sequence[int] = (11, 12, 13)
    least_stage_s: float = 1e-3
    encoder: tuple[int, int, int] = (12, 768, 12)  # layers, width, heads
    lengths: Sequence[int] = (8, 16, 32, 64, 128, 256, 512)
    most_tokens: int = 1024
    num_wall_requests: int = 260
    num_segments: int = 3


EFFORT = Effort()


class Kernels:
    """A model in stages, and how long each of them took each time. Immutable once made."""

    def __init__(self, subject: Subject) -> None:
        torch.manual_seed(7)
        model = subject.make().eval().to(subject.dtype)
        rows = torch.rand(MAX_ROWS, *subject.row_shape).to(subject.dtype)
        with torch.inference_mode():
            stages = cut(
                Cuttable(model, ("x",)),
                {"x": rows[:3]},
                EFFORT.least_stage_s,
                time.thread_time,
            )
            self.samples: list[dict[int, list[float]]] = [
                {size: [] for size in EFFORT.sizes} for _ in stages
            ]
            for round_index in range(EFFORT.num_rounds + 1):
                for size in EFFORT.sizes:
                    value = rows[:size]
                    for index, stage in enumerate(stages):
                        begun_s = time.thread_time()
                        value = stage(value) if index else stage(x=value)
                        took_s = time.thread_time() - begun_s
                        if round_index:
                            self.samples[index][size].append(took_s)
        self.whole = self.table(pads=False)
        self.capacity = self.whole.best_rate

    def table(self, *, pads: bool) -> StageTimes:
        """Returns what is measured before it serves: means of every other round."""
        means = [
            {size: statistics.fmean(each[::2]) for size, each in samples.items()}
            for samples in self.samples
        ]
        return times_of(means, MAX_ROWS, pads=pads)

    def learned(self, process: str, rate: float) -> StageTimes:
        """Returns the table as it is after a while of serving such arrivals."""
        times = self.table(pads=True)
        replayed = self.replayed(times, 77)

        def took(stage: int, num_rows: int) -> float:
            took_s = replayed(stage, num_rows)
            times.note(stage, times.padded(stage, num_rows), took_s)
            if stage == times.num_stages - 1:
                times.begin()
            return took_s

        coming = arrivals_of(process, rate, EFFORT.num_arrivals // 2, 98)
        simulate(times, coming, GREEDY, took=took)
        times.begin()
        return times

    def replayed(self, times: StageTimes, seed: int) -> Callable[[int, int], float]:
        """Returns what draws the times that stages take, from the rounds between.

        Those of the sizes to which ``times`` has stages padded.
        """
        dice = random.Random(seed)

        def took(stage: int, num_rows: int) -> float:
            num_rows = times.padded(stage, num_rows)
            samples = self.samples[stage]
            near = min(samples, key=lambda size: abs(size - num_rows))
            drawn_s = dice.choice(samples[near][1::2])
            if near == num_rows:
                return drawn_s
            # Sizes that were not run take what is between their neighbours.
            known_s = max(self.whole.stage_s(stage, near), 1e-9)
            return drawn_s * self.whole.stage_s(stage, num_rows) / known_s

        return took

    def error(self) -> float:
        """Returns the median of how far single runs of the model are from the table."""
        errors = [
            abs(
                sum(samples[size][index] for samples in self.samples)
                / self.whole.total_s(size)
                - 1
            )
            for size in EFFORT.sizes
            for index in range(1, EFFORT.num_rounds, 2)
        ]
        return statistics.median(errors)

    def serve(
        self,
        rule: Rule,
        arrivals: Sequence[Arrival],
        seed: int,
        times: StageTimes | None = None,
    ) -> Simulated:
        """Replays arrivals; without the server's table no stage is padded."""
        times = times or self.whole
        return simulate(times, arrivals, rule, took=self.replayed(times, seed))


def arrivals_of(process: str, rate: float, num: int, seed: int) -> list[Arrival]:
    """Returns arrivals at a mean rate: by chance, evenly, or five at a time by chance."""
    dice = random.Random(seed)
    if process == "regular":
        return [Arrival(index / rate) for index in range(num)]
    if process == "poisson":
        gaps = (dice.expovariate(rate) for _ in range(num))
        return [Arrival(at_s) for at_s in itertools.accumulate(gaps)]
    bursts = itertools.accumulate(
        dice.expovariate(rate / 5) for _ in range(math.ceil(num / 5))
    )
    return [Arrival(at_s) for at_s in bursts for _ in range(5)][:num]


def auto_rule(times: StageTimes, process: str, rate: float) -> Rule:
    """Returns what AUTO chooses after other arrivals of the same kind."""
    coming = arrivals_of(process, rate, EFFORT.num_arrivals // 2, 99)
    return best_rule(times, coming, GREEDY)


_KNOWN: dict[str, Kernels] = {}


def kernels_of(name: str) -> Kernels:
    """Measures a model once for all parts of the benchmark."""
    if name not in _KNOWN:
        with one_thread():
            _KNOWN[name] = Kernels(SUBJECTS[name])
    return _KNOWN[name]


def measure_subject(name: str, report: Report) -> None:
    """Every load and arrival process, with and without joining."""
    kernels = kernels_of(name)
    means: dict[tuple[str, float], float] = {}
    tails: dict[tuple[str, float], float] = {}
    beside_lbci: list[float] = []
    lbci_means: list[float] = []
    for process, load in itertools.product(PROCESSES, LOADS):
        rate = load * kernels.capacity
        times = kernels.learned(process, rate)
        rules: Sequence[tuple[str, Rule, StageTimes | None]] = (
            ("greedy", GREEDY, None),
            ("lbci", Lbci(16 * times.total_s(1)), times),
            ("auto", auto_rule(times, process, rate), times),
        )
        found: dict[str, list[Simulated]] = {}
        for seed, (what, rule, table) in itertools.product(EFFORT.seeds, rules):
            coming = arrivals_of(process, rate, EFFORT.num_arrivals, seed)
            served = kernels.serve(rule, coming, seed, table)
            found.setdefault(what, []).append(served)
        mean = {
            k: statistics.fmean(s.mean_s for s in each) for k, each in found.items()
        }
        tail = {k: statistics.fmean(s.p99_s for s in each) for k, each in found.items()}
        means[process, load] = mean["auto"] / mean["greedy"]
        tails[process, load] = tail["auto"] / tail["greedy"]
        beside_lbci.append(mean["auto"] / mean["lbci"])
        if process == "poisson":
            lbci_means.append(mean["lbci"] / mean["greedy"])
    poisson = [ratio for (process, _), ratio in means.items() if process == "poisson"]
    report.record(f"layered/auto-vs-greedy-mean/{name}", _geo(poisson))
    report.record(f"layered/auto-vs-greedy-mean-worst/{name}", max(means.values()))
    report.record(f"layered/auto-vs-greedy-p99/{name}", _geo(list(tails.values())))
    report.record(f"layered/auto-vs-greedy-p99-worst/{name}", max(tails.values()))
    report.record(f"layered/auto-vs-lbci-worst/{name}", max(beside_lbci))
    report.record(f"layered/lbci-vs-greedy-mean/{name}", _geo(lbci_means))
    report.record(f"layered/table-error-median/{name}", kernels.error())
    report.record(f"layered/lbci-goodput-at-3-to-5-rows/{name}", _goodput(kernels))


def _measure(name: str) -> Callable[[Report], None]:
    measure = partial(measure_subject, name)
    measure.__name__ = f"measure_{name}"  # type: ignore[attr-defined]
    return measure


def _goodput(kernels: Kernels) -> float:
    """Returns the least share of greedy's timely answers that a tight bound leaves LBCI."""
    shares = []
    for in_rows in (3, 4, 5):
        num_in_time = [0, 0]
        for load in (0.2, 0.5):
            rate = load * kernels.capacity
            times = kernels.learned("poisson", rate)
            bound = in_rows * times.total_s(1)
            coming = arrivals_of("poisson", rate, EFFORT.num_arrivals, 21)
            for index, found in enumerate(
                (
                    kernels.serve(Lbci(bound), coming, 21, times),
                    kernels.serve(GREEDY, coming, 21),
                )
            ):
                latencies = found.latencies_s
                num_in_time[index] += sum(took_s <= bound for took_s in latencies)
        shares.append(num_in_time[0] / max(num_in_time[1], 1))
    return min(shares)


def _geo(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def measure_lengths(report: Report) -> None:
    """An encoder of BERT's shape; what is answered within four times the median's own time."""
    with one_thread():
        batches = EncoderTimes(EFFORT.encoder, EFFORT.lengths, EFFORT.most_tokens)
    dice = random.Random(5)
    drawn = [
        min(512, max(8, round(dice.lognormvariate(math.log(64), 0.9))))
        for _ in range(EFFORT.num_arrivals)
    ]
    for load in LENGTH_LOADS:
        rates = {
            name: batches.goodput(choose, drawn, load)
            for name, choose in (
                ("plan", LengthWindow(length_of, MAX_ROWS)),
                ("pad-to-longest", None),
                ("buckets", BUCKETS),
            )
        }
        for what in ("pad-to-longest", "buckets"):
            row = f"layered/lengths-vs-{what}/load-{load}"
            report.record(row, rates["plan"], rates[what])
    equal = [64] * EFFORT.num_arrivals
    planned = batches.goodput(LengthWindow(length_of, MAX_ROWS), equal, 0.8)
    row = "layered/equal-lengths-vs-first-come/load-0.8"
    report.record(row, planned, batches.goodput(None, equal, 0.8))


def measure_wall(report: Report) -> None:
    """The real server over gRPC, at half of its capacity."""
    rate = 0.5 * kernels_of("alexnet").capacity
    joined, alone = served_means(rate, EFFORT.num_wall_requests, EFFORT.num_segments)
    report.record("layered/served-mean-vs-off/alexnet", joined, alone)


# -- the paper -------------------------------------------------------------------------------------


def measure_figure_4(report: Report) -> None:
    """How well equation 6 fits, and how many runs of N_opt rows exceed ``t_opt``."""
    kernels = kernels_of("alexnet")
    bound = _paper_bound(kernels)
    rule = PublishedLbci(kernels.whole, bound)
    errors = [
        abs(rule.predict_s(size) / kernels.whole.total_s(size) - 1)
        for size in EFFORT.sizes
    ]
    report.record("layered/figure-4-fit-error/alexnet", statistics.fmean(errors))
    took, most = kernels.replayed(kernels.whole, 4), rule.most_rows(kernels.whole)
    runs = [
        sum(took(stage, most) for stage in range(kernels.whole.num_stages))
        for _ in range(100)
    ]
    late = sum(run_s > bound for run_s in runs) / len(runs)
    report.record("layered/figure-4-over-bound/alexnet", late)


def measure_figures_5_and_6(report: Report) -> None:
    """Single-sample requests at the paper's four traffics."""
    kernels = kernels_of("alexnet")
    bound = _paper_bound(kernels)
    for traffic in PAPER_TRAFFIC:
        rate = traffic / PAPER_CAPACITY * kernels.capacity
        coming = arrivals_of("poisson", rate, 600, 5)
        for name, found in _by_each_rule(kernels, coming, rate):
            latencies = found.latencies_s
            ends = [
                a.at_s + took_s for a, took_s in zip(coming, latencies, strict=True)
            ]
            report.record(
                f"layered/figure-5-delay-{traffic}/{name}", found.mean_s * 1e3
            )
            report.record(
                f"layered/figure-5-throughput-{traffic}/{name}",
                len(ends) / (max(ends) - coming[0].at_s),
            )
            if traffic == 60:
                late = sum(took_s > bound for took_s in latencies) / len(latencies)
                report.record(f"layered/figure-6-late-at-60/{name}", late)


def measure_figure_7(report: Report) -> None:
    """Ten requests of several samples each, a tenth of a second apart: until all are done."""
    kernels = kernels_of("alexnet")
    scale = PAPER_CAPACITY / kernels.capacity
    for most in (10, 25, 50):
        taken: dict[str, list[float]] = {}
        for seed in range(30):
            dice = random.Random(seed)
            coming = [
                Arrival(index * 0.1 * scale, rows)
                for index in range(10)
                for rows in _portions(dice.randint(1, most))
            ]
            for name, found in _by_each_rule(kernels, coming, 0.0):
                ends = zip(coming, found.latencies_s, strict=True)
                taken.setdefault(name, []).append(
                    max(arrival.at_s + took_s for arrival, took_s in ends)
                )
        for name, ends_s in taken.items():
            if name != "batches-of-10":
                row = f"layered/figure-7-up-to-{most}/{name}"
                report.record(row, statistics.fmean(ends_s) * 1e3)


def _portions(num_rows: int) -> Iterator[int]:
    """Yields the rows of a request in portions that fit a batch."""
    while num_rows > 0:
        yield min(num_rows, MAX_ROWS)
        num_rows -= MAX_ROWS


def _paper_bound(kernels: Kernels) -> float:
    """Returns the paper's 500 ms, in this machine's time."""
    return 0.5 * PAPER_CAPACITY / kernels.capacity


def _by_each_rule(
    kernels: Kernels, coming: Sequence[Arrival], rate: float
) -> Iterator[tuple[str, Simulated]]:
    bound = _paper_bound(kernels)
    rate = rate or 0.65 * kernels.capacity
    times = kernels.learned("poisson", rate)
    auto = auto_rule(times, "poisson", rate)
    yield "serial", kernels.serve(_AtMost(1), coming, 3)
    yield "batches-of-10", _fixed(kernels, coming, 10)
    published = PublishedLbci(kernels.whole, bound)
    yield "lbci", kernels.serve(published, coming, 3)
    yield "greedy", kernels.serve(GREEDY, coming, 3)
    yield "auto", kernels.serve(auto, coming, 3, times)


@dataclass(frozen=True)
class _AtMost(Rule):
    """Batches of at most so many rows, or of one request."""

    most: int

    def most_rows(self, times: StageTimes) -> int:
        return self.most


def _fixed(kernels: Kernels, coming: Sequence[Arrival], size: int) -> Simulated:
    """Waits until so many requests are there, as the paper's Batchsize(m) does."""
    took = kernels.replayed(kernels.whole, 3)
    latencies: list[float] = []
    free_s = 0.0
    for start in range(0, len(coming), size):
        batch = coming[start : start + size]
        free_s = max(free_s, batch[-1].at_s)
        rows = sum(each.num_rows for each in batch)
        for portion in _portions(rows):
            stages = range(kernels.whole.num_stages)
            free_s += sum(took(stage, portion) for stage in stages)
        latencies += [free_s - each.at_s for each in batch]
    return Simulated(tuple(latencies))


AREA = Area(
    "layered",
    ROWS,
    (
        *map(_measure, SUBJECTS),
        measure_lengths,
        measure_wall,
        measure_figure_4,
        measure_figures_5_and_6,
        measure_figure_7,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(AREA))
