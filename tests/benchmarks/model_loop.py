"""A program that calls one packaged model from threads of its own: what TFS is held to.

    python -m tests.benchmarks.model_loop ARCHIVE INPUTS eager|traced

It loads the archive as any user would (or as an interpreter of TFS does) and answers
each line "THREADS SECONDS" with "CALLS_PER_S P50_US P99_US". One process with T threads
is the global interpreter of the paper's figure 5; T processes with one thread each are
the ceiling of this machine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self, cast

import torch

from tfs.runtime.guest.memory_files import SealedFile
from tfs.runtime.guest.platforms.torch_package import open_package
from tfs.runtime.process.zygote_process import worker_environment


def load(archive: str, inputs: str, kind: str) -> Callable[[], object]:
    """Returns a call of the model with its inputs."""
    tensors = torch.load(inputs, weights_only=True)
    # As TFS opens it: the plain importer cannot run every package.
    importer = open_package(SealedFile.copy_of(archive), "model loop")
    model = importer.load_pickle("model", "model.pkl").eval()
    if kind == "traced":
        with torch.no_grad():
            model = torch.jit.trace(  # type: ignore[no-untyped-call]
                model, example_kwarg_inputs=tensors, strict=False, check_trace=False
            )
            model = torch.jit.freeze(model)
    return lambda: model(**tensors)


def measure(
    call: Callable[[], object], num_threads: int, duration_s: float
) -> tuple[float, list[float]]:
    """Calls from every thread until the time is up.

    A call before, by each thread, fills the caches. The last one counts in full, and
    so does its time.

    Returns:
        Calls per second, of all threads together, and the latencies.

    """
    latencies_s: list[list[float]] = [[] for _ in range(num_threads)]
    rates = [0.0] * num_threads
    begin = threading.Barrier(num_threads)

    def work(index: int) -> None:
        now = time.perf_counter
        own_s = latencies_s[index]
        with torch.inference_mode():
            call()
            begin.wait()
            begun_s = started_s = now()
            limit_s = begun_s + duration_s
            while started_s < limit_s:
                call()
                ended_s = now()
                own_s.append(ended_s - started_s)
                started_s = ended_s
        rates[index] = len(own_s) / (started_s - begun_s)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates), [latency_s for own_s in latencies_s for latency_s in own_s]


class ModelLoop:
    """The program, running. A context manager."""

    def __init__(self, archive: Path, inputs: Path, kind: str = "eager") -> None:
        self._command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.benchmarks.model_loop",
            str(archive),
            str(inputs),
            kind,
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=worker_environment(),
        )
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=30)

    def begin(self, num_threads: int, duration_s: float) -> None:
        """Starts a measurement."""
        stdin = cast("IO[str]", cast("subprocess.Popen[str]", self._process).stdin)
        stdin.write(f"{num_threads} {duration_s}\n")
        stdin.flush()

    def end(self) -> tuple[float, float, float]:
        """Returns calls per second, p50 and p99 in microseconds."""
        calls_per_s, p50_us, p99_us = self._answer().split()
        return float(calls_per_s), float(p50_us), float(p99_us)

    def _answer(self) -> str:
        stdout = cast("IO[str]", cast("subprocess.Popen[str]", self._process).stdout)
        line = stdout.readline()
        if not line:
            raise RuntimeError("the model loop ended")
        return line


def run_loops(loops: Sequence[ModelLoop], num_threads: int, duration_s: float) -> float:
    """Runs loops side by side; returns their calls per second together."""
    for loop in loops:
        loop.begin(num_threads, duration_s)
    return sum(loop.end()[0] for loop in loops)


def main(archive: str, inputs: str, kind: str) -> None:
    torch.set_num_threads(1)
    call = load(archive, inputs, kind)
    with torch.inference_mode():
        for _ in range(3):
            call()
    print("ready", flush=True)
    for line in sys.stdin:
        num_threads, duration_s = line.split()
        calls_per_s, latencies_s = measure(call, int(num_threads), float(duration_s))
        # A machine that is busy with something else may get through one call only.
        if len(latencies_s) == 1:
            latencies_s *= 2
        cuts_s = statistics.quantiles(latencies_s, n=100)
        print(calls_per_s, cuts_s[49] * 1e6, cuts_s[98] * 1e6, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
