"""An AlexNet served twice over gRPC, with and without requests that join: by the wall clock.

Both servers get the same recorded arrivals, one segment after the other, ABAB. Whatever else the
machine does is in both; so these numbers have no goal.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.models.alexnet import AlexNet
from tests.benchmarks.row import Series
from tests.benchmarks.server_process import ServerProcess
from tfs.client import Client
from tfs.export import Packaging, save

_READY_S = 120.0
_PARAMETERS = "max_batch_size { value: 32 } policy { layered { mode: %s } }"


class Served:
    """A server with an AlexNet, and a client of it."""

    def __init__(self, stack: ExitStack, folder: Path, mode: str) -> None:
        torch.manual_seed(7)
        save(
            AlexNet().eval(),
            torch.rand(3, 3, 224, 224),
            folder,
            1,
            packaging=Packaging(batching_parameters=_PARAMETERS % mode),
        )
        command = [
            *(sys.executable, "-m", "tfs", "serve", "--grpc_host=127.0.0.1"),
            *("--any_port=true", "--enable_batching", "--model_name=alexnet"),
            *(f"--model_base_path={folder}", "--load_probe_budget_s=0"),
            "--interpreter_backend=inline",
        ]
        server = stack.enter_context(ServerProcess(command))
        self._client = stack.enter_context(Client(server.target, timeout_s=_READY_S))
        self._image = np.random.default_rng(1).random((1, 3, 224, 224), np.float32)
        until_s = time.monotonic() + _READY_S
        while True:
            try:
                self.ask(0.0)
                return
            except Exception:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)  # it is loading; there is nothing to wait on

    def ask(self, due_s: float) -> float:
        """Sends a request when it is due; returns the seconds from then to its answer."""
        time.sleep(max(0.0, due_s - time.monotonic()))
        begun_s = max(due_s, 0.0) or time.monotonic()
        self._client.predict("alexnet", {"x": self._image})
        return time.monotonic() - begun_s

    def mean_ms(
        self, arrivals_s: Sequence[float], callers: ThreadPoolExecutor
    ) -> float:
        """Returns the mean latency of requests that come at these times."""
        start_s = time.monotonic() + 0.1
        due = [start_s + at_s for at_s in arrivals_s]
        took_s = list(callers.map(self.ask, due))
        return 1e3 * sum(took_s) / len(took_s)


def served_means(rate: float, num: int, num_segments: int) -> tuple[Series, Series]:
    """Returns mean milliseconds by segment, with joining and without."""
    means: dict[str, list[float]] = {"AUTO": [], "OFF": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = {mode: Served(stack, folder / mode.lower(), mode) for mode in means}
        callers = stack.enter_context(ThreadPoolExecutor(64))
        for segment, mode in itertools.product(range(num_segments + 1), means):
            dice = random.Random(segment)
            gaps = map(partial(_gap, dice, rate), range(num))
            mean_ms = served[mode].mean_ms(list(itertools.accumulate(gaps)), callers)
            if segment:  # in the first one AUTO has not chosen yet
                means[mode].append(mean_ms)
    return Series(tuple(means["AUTO"])), Series(tuple(means["OFF"]))


def _gap(dice: random.Random, rate: float, _: int) -> float:
    return dice.expovariate(rate)
