"""A model computed layer by layer, with and without requests that join between layers.

Real kernels under a virtual clock, which goes by the processor time that they take: other
programs do not count. The code is that of ``tfs.runtime.layered``; only the callers are not
threads but a list of arrivals.

On a machine that others use, a few dozen requests show differences of a third that are none. So
the same arrivals, and many more of them, also go through the table of the layers' times, where
every layer takes exactly what was measured.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn

from tests.benchmarks.harness import Sample
from tests.benchmarks.models.alexnet import AlexNet
from tests.benchmarks.models.resnet18 import ResNet18
from tfs.runtime.layer_joining import rows_to_join
from tfs.runtime.layer_run import MAX_JOINS, LayerRun
from tfs.runtime.part_call import PartCall

MAX_ROWS = 32


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Returns a model as layers, one after the other; itself where it has none."""
    match model:
        case AlexNet():
            return list(model.layers)
        case ResNet18():
            end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.head)
            return [model.stem, *model.blocks, end]
    return [model]


class VirtualTime:
    """Processor time of this thread, moved on where nothing is to do."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        return time.thread_time() + self._ahead_s

    wall_s = staticmethod(time.time)

    def wait(
        self, condition: threading.Condition, deadline_s: float | None = None
    ) -> None:
        raise AssertionError("nobody waits here")

    def move_to(self, when_s: float) -> None:
        self._ahead_s += max(0.0, when_s - self.now())


class LayeredRuns:
    """A network of layers, measured once for all runs."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        budget_s: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._clock = VirtualTime()
        self._run = LayerRun(layers, MAX_ROWS, self._clock)
        self._image = torch.rand(1, 3, 224, 224).to(dtype)
        with torch.inference_mode():
            self._run.measure((self._image,), {}, budget_s)

    def mean_latency(self, load: float, num: int, seed: int, *, joins: bool) -> Sample:
        """Returns the mean latency of so many requests, which come by chance."""
        dice = random.Random(seed)
        now_s = self._clock.now()
        rate = load * self._run.times.best_rate
        coming: list[float] = []
        for _ in range(num):
            now_s += dice.expovariate(rate)
            coming.append(now_s)
        coming.reverse()
        waiting: list[float] = []
        latencies: list[float] = []
        running: list[float] = []

        def look() -> None:
            while coming and coming[-1] <= self._clock.now():
                waiting.append(coming.pop())

        def take(_: Sequence[PartCall], layer: int, num_rows: int) -> list[PartCall]:
            if not joins:
                return []
            look()
            rows = rows_to_join(self._run.times, layer, num_rows, [1] * len(waiting))
            running.extend(waiting[:rows])
            del waiting[:rows]
            return [self._call() for _ in range(rows)]

        with torch.inference_mode():
            while waiting or coming:
                if not waiting:
                    self._clock.move_to(coming[-1])
                    look()
                running[:] = waiting[:MAX_ROWS]
                del waiting[:MAX_ROWS]
                failed: list[PartCall] = []
                self._run.run([self._call() for _ in running], take, failed)
                assert not failed
                ended_s = self._clock.now()
                latencies += [ended_s - arrived_s for arrived_s in running]
                look()
        assert len(latencies) == num
        return {"mean_ms": statistics.fmean(latencies) * 1e3}

    def mean_by_table(self, load: float, num: int, seed: int, *, joins: bool) -> Sample:
        """Returns the mean latency if every layer took what was measured of it."""
        times = self._run.times
        times.begin()
        dice = random.Random(seed)
        rate = load * times.best_rate
        coming = deque(accumulate(dice.expovariate(rate) for _ in range(num)))
        waiting: deque[float] = deque()
        total_s = now_s = 0.0
        while waiting or coming:
            if not waiting:
                now_s = max(now_s, coming[0])
            _move(coming, waiting, now_s)
            running = _first(waiting, MAX_ROWS)
            num_joins = 0
            for layer in range(times.num_layers):
                _move(coming, waiting, now_s)
                if joins and layer and waiting and num_joins < MAX_JOINS:
                    rows = rows_to_join(times, layer, len(running), [1] * len(waiting))
                    if rows:
                        num_joins += 1
                        running += _first(waiting, rows)
                        now_s += times.until_s(layer, rows)
                        now_s += times.join_s(layer, len(running))
                rest_s = times.from_s(layer, len(running))
                if layer + 1 < times.num_layers:
                    rest_s -= times.from_s(layer + 1, len(running))
                now_s += rest_s
            total_s += sum(now_s - arrived_s for arrived_s in running)
        return {"mean_ms": total_s / num * 1e3}

    def _call(self) -> PartCall:
        return PartCall((self._image,), {}, 1)


def _move(coming: deque[float], waiting: deque[float], now_s: float) -> None:
    """Lets those wait that have come."""
    while coming and coming[0] <= now_s:
        waiting.append(coming.popleft())


def _first(waiting: deque[float], num: int) -> list[float]:
    """Takes the first of those that wait."""
    return [waiting.popleft() for _ in range(min(num, len(waiting)))]
