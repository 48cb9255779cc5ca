"""`make bench-skeleton`: the walking skeleton's Predict, and its swaps.

Small Predict is set against a bare grpcio echo of the same bytes: what is above the
echo is what serving adds (decode, lookup, pin, model, encode). Then versions are
renamed into the model's directory while a client keeps sending. Every version
multiplies by its own number, so each reply shows whether the version that it names is
the one that computed it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

import tfs.export
from tests.benchmarks.harness import Area, Report, Sample, interleave, main
from tests.benchmarks.load import LoadResult, closed_loop, run_closed_loop
from tests.benchmarks.models.times import Times
from tests.benchmarks.process_cpu import ProcessTreeCpu
from tests.benchmarks.row import Goal, Row, Series
from tests.benchmarks.server_process import ServerProcess
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INPUT = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
READY_TIMEOUT_S = 60.0
SWAP_TIMEOUT_S = 30.0
# One thread per operator: both servers get the same single core's worth of model.
ENV = {"OMP_NUM_THREADS": "1"}

ROWS = (
    Row("skeleton/predict-cpu/16-in-flight", "us"),
    Row("skeleton/predict-rate/16-in-flight", "1/s"),
    Row("skeleton/predict-p50/one-in-flight", "us"),
    Row("skeleton/swap-failed/under-load", "", Goal("value", "<=", 0)),
    Row("skeleton/swap-time/rename-to-answer", "ms"),
    Row("skeleton/swap-p99/under-load", "ms"),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure; the default is for figures, tests take less."""

    round_s: float = 4.0
    num_rounds: int = 5
    num_swaps: int = 20
    num_in_flight: int = 4


def request_body() -> bytes:
    """Returns a Predict of four floats, as ordinary clients encode it."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "times"
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in INPUT.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = INPUT.numpy().tobytes()
    return request.SerializeToString()


def read_version(reply: bytes) -> int | None:
    """Returns the version that answered, or None if the answer is not that version's.

    The answer must be, bit for bit, what plain torch gives for the version named.
    """
    response = predict_pb2.PredictResponse.FromString(reply)
    version: int = response.model_spec.version.value
    tensor = response.outputs["y"]
    if tensor.tensor_content:
        values = np.frombuffer(tensor.tensor_content, np.float32)
    else:
        values = np.array(tensor.float_val, np.float32)
    expected = (INPUT * float(version)).numpy().reshape(-1)
    return version if version and np.array_equal(values, expected) else None


class ReplyCheck:
    """Tells right replies from wrong ones; parses each different one once.

    Whatever the client spends here it takes from the server's core. Confined to one
    thread.

    Attributes:
        first_seen_s: when each version's first right reply came, by `clock`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._versions: dict[bytes, int | None] = {}
        self.first_seen_s: dict[int, float] = {}

    def __call__(self, reply: bytes) -> bool:
        if reply not in self._versions:
            version = self._versions[reply] = read_version(reply)
            if version is not None:
                self.first_seen_s.setdefault(version, self._clock())
        return self._versions[reply] is not None


def export(version: int, base_path: Path) -> Path:
    """Writes that version of the model; returns its directory."""
    model = Times(version).eval()
    example = INPUT.repeat(2, 1)
    return Path(tfs.export.save(model, example, base_path, version=version))


@contextmanager
def serve_times(folder: Path) -> Iterator[ServerProcess]:
    """Serves version 1 below `folder`/times; yields once it answers rightly."""
    base_path = folder / "times"
    export(1, base_path)
    command = [
        *(sys.executable, "-m", "tfs", "serve", "--log_level=warning"),
        *("--grpc_host=127.0.0.1", "--any_port=true"),
        *("--model_name=times", f"--model_base_path={base_path}"),
    ]
    announcement = r"(127\.0\.0\.1:\d+)"
    with ServerProcess(command, announcement=announcement, env=ENV) as server:
        wait_until_serving(server.target)
        yield server


def wait_until_serving(target: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Blocks until Predict is answered rightly.

    Raises:
        TimeoutError: it was not within `timeout_s`; says what came instead.
    """
    deadline_s = time.monotonic() + timeout_s
    fault = "no answer"
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(PREDICT, bytes, bytes)
        while time.monotonic() < deadline_s:
            try:
                reply = call(request_body(), timeout=5, wait_for_ready=True)
            except grpc.RpcError as error:
                fault = f"{error.code().name}: {error.details()}"
                time.sleep(0.05)  # it is loading; there is nothing to wait on
                continue
            if read_version(reply) is None:
                raise ValueError(f"{target} answers wrongly: {reply!r}")
            return
    raise TimeoutError(f"{target} does not serve after {timeout_s:g} s: {fault}")


def measure_predict(report: Report, effort: Effort) -> None:
    """Small Predict beside the echo of the same bytes."""
    echo = [sys.executable, "-m", "tests.benchmarks.echo_server"]
    body = request_body()
    faults: list[dict[str, int]] = []

    def measurer(
        server: ServerProcess, check: Callable[[bytes], bool]
    ) -> Callable[[], Sample]:
        cpu = ProcessTreeCpu(server.pid)

        def measure() -> Sample:
            before_s = cpu.read_s()
            many = run(16, effort.round_s)
            used_s = cpu.read_s() - before_s
            one = run(1, effort.round_s / 4)
            return {
                "cpu_us": used_s * 1e6 / max(1, many.num_ok),
                "rate": many.num_ok / many.duration_s,
                "p50_us": one.latency_s(0.5) * 1e6,
            }

        def run(num_in_flight: int, duration_s: float) -> LoadResult:
            result = run_closed_loop(
                server.target,
                PREDICT,
                body,
                num_in_flight=num_in_flight,
                duration_s=duration_s,
                check=check,
            )
            faults.append(dict(result.faults))
            return result

        return measure

    with (
        tempfile.TemporaryDirectory() as folder,
        serve_times(Path(folder)) as server,
        ServerProcess(echo, env=ENV) as echo_server,
    ):
        runs = interleave(
            {
                "tfs": measurer(server, ReplyCheck()),
                "echo": measurer(echo_server, lambda reply: reply == body),
            },
            num_rounds=effort.num_rounds,
        )
    for row, quantity in zip(ROWS[:3], ("cpu_us", "rate", "p50_us"), strict=True):
        report.record(
            row.name,
            runs["tfs"][quantity],
            runs["echo"][quantity],
            results_ok=not any(faults),
        )


def measure_swaps(report: Report, effort: Effort) -> None:
    """Versions renamed into place under load; the quiet time before is the baseline."""
    with tempfile.TemporaryDirectory() as name, serve_times(Path(name)) as server:
        folder = Path(name)
        staged = {
            version: export(version, folder / "staged")
            for version in range(2, effort.num_swaps + 2)
        }
        load = partial(
            closed_loop,
            server.target,
            PREDICT,
            request_body(),
            num_in_flight=effort.num_in_flight,
        )
        quiet = asyncio.run(load(duration_s=effort.round_s, check=ReplyCheck()))
        swapped, times_s = asyncio.run(_swap_under(load, staged, folder / "times"))
    if swapped.faults:
        print(f"  failed under load: {dict(swapped.faults)}")
    results_ok = "wrong reply" not in swapped.faults
    report.record(ROWS[3].name, swapped.num_failed, results_ok=results_ok)
    report.record(
        ROWS[4].name,
        Series(tuple(time_s * 1e3 for time_s in times_s)),
        results_ok=results_ok,
    )
    report.record(
        ROWS[5].name,
        swapped.latency_s(0.99) * 1e3,
        quiet.latency_s(0.99) * 1e3,
        results_ok=results_ok,
    )


async def _swap_under(
    load: Callable[..., Coroutine[Any, Any, LoadResult]],
    staged: dict[int, Path],
    base_path: Path,
) -> tuple[LoadResult, list[float]]:
    """Renames each staged version into place, once the one before it has answered.

    Returns what the load saw, and for each version the seconds from its rename to its
    first answer.

    Raises:
        TimeoutError: a version did not answer in time.
    """
    check = ReplyCheck()
    stop = asyncio.Event()
    sending = asyncio.create_task(load(stop=stop, check=check))
    times_s: list[float] = []
    try:
        for version, path in staged.items():
            renamed_s = time.perf_counter()
            path.rename(base_path / str(version))
            async with asyncio.timeout(SWAP_TIMEOUT_S):
                while version not in check.first_seen_s and not sending.done():
                    await asyncio.sleep(0.01)
            if version not in check.first_seen_s:
                break  # the load ended by itself: its error is raised below
            times_s.append(check.first_seen_s[version] - renamed_s)
    except TimeoutError:
        raise TimeoutError(f"version {version} did not answer") from None
    finally:
        stop.set()
        result = await sending
    return result, times_s


def build_area(effort: Effort) -> Area:
    """Returns the area, measured with that effort."""

    def predict(report: Report) -> None:
        measure_predict(report, effort)

    def swaps(report: Report) -> None:
        measure_swaps(report, effort)

    return Area("skeleton", ROWS, (predict, swaps))


if __name__ == "__main__":
    raise SystemExit(main(build_area(Effort())))
