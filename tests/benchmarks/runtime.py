"""The interpreters: what calls through them cost, scale to, and take of memory.

The paper's figure 5 with its three configurations (one interpreter per requester, one
global interpreter, TorchScript) and, beside them, the ceiling: as many processes as
requesters that only call the model. Every model's outputs are compared bit for bit with
the plain model's before anything is timed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from tests.benchmarks import compiled, private_pythons
from tests.benchmarks.harness import (
    RESULTS,
    Area,
    Report,
    Sample,
    interleave,
    main,
)
from tests.benchmarks.model_loop import ModelLoop, run_loops
from tests.benchmarks.plot import Panel, write_panels
from tests.benchmarks.row import Goal, Row, Series
from tests.models.bert_encoder import BertEncoder
from tests.models.dlrm import DLRM
from tests.models.mobilenet_v3 import MobileNetV3
from tests.runtime import zoo
from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature
from tests.runtime.process_host import (
    ProcessHost,
    pid_of,
    process_host,
    until,
    wait_for_successor,
)
from tfs.core.dtype import FLOAT32
from tfs.core.errors import ServingError
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import DTYPE_OF, to_view
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.process.crash_policy import CrashPolicy
from tfs.runtime.process.process_backend import ProcessPool
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import Worker

NUM_CORES = len(os.sched_getaffinity(0))
REQUESTERS = tuple(sorted({1, 2, 4, NUM_CORES}))
MODELS = ("dlrm", "mobilenet", "encoder")
CONFIGURATIONS = {
    "processes": "one interpreter per requester",
    "global": "one global interpreter",
    "torchscript": "TorchScript",
    "ceiling": "unconnected processes",
}
PAPER_CLAIMS = {
    "dlrm": "paper: TorchScript is over 2x as fast;\n"
    "interpreters, while slower, scale with the threads",
    "mobilenet": "paper: TorchScript and interpreters scale well;\n"
    "a global interpreter barely does",
    "encoder": "paper: Python is a small part of the time;\n"
    "several interpreters bring little",
}
ROUNDS = 5
# Of the figure: many short windows, so that what drifts, or comes and goes, in a machine
# meets everything that is compared. The last call of a window counts with its time.
WINDOW_S = 0.25
FIGURE_ROUNDS = 13


def figure_5_rows() -> Iterator[Row]:
    """Returns the rows of the paper's figure, two requesters with the goals."""
    two = {
        "dlrm": Goal("ratio", ">=", 0.70),
        "mobilenet": Goal("ratio", ">=", 0.92),
        "encoder": Goal("ratio", ">=", 0.92),
    }
    for model in MODELS:
        for num in REQUESTERS:
            what = f"runtime/{model}-{num}"
            goal = two[model] if num == 2 else None
            claim = Goal("ratio", ">=", 2.5) if model == "dlrm" and num == 2 else None
            yield Row(f"{what}/vs-global-interpreter", "calls/s", claim)
            yield Row(f"{what}/vs-ceiling", "calls/s", goal)
            yield Row(f"{what}/torchscript", "calls/s")
            if model == "dlrm":
                own = Goal("ratio", ">=", 0.80) if num == 2 else None
                yield from private_pythons.figure_rows(model, num, own)


ROWS = (
    Row("runtime/crash/worker-back", "ms", Goal("value", "<=", 100.0)),
    Row("runtime/load-500mb/p99-of-others", "us", Goal("ratio", "<=", 1.3)),
    Row("runtime/unload/memory-returned", "share", Goal("value", ">=", 0.95)),
    *figure_5_rows(),
    *compiled.rows(),
    *private_pythons.ROWS,
    Row("runtime/call-cost-4kb/process-spinning", "us", Goal("value", "<=", 40.0)),
    Row("runtime/call-cost-4kb/process", "us", Goal("value", "<=", 120.0)),
    Row("runtime/call-cost-600kb/process-spinning", "us", Goal("value", "<=", 150.0)),
    Row("runtime/call-cost-600kb/process", "us", Goal("value", "<=", 200.0)),
    Row("runtime/extra-interpreter/private", "MB", Goal("value", "<=", 15.0)),
    Row("runtime/extra-interpreter/ready", "ms", Goal("value", "<=", 10.0)),
    Row("runtime/extra-interpreter/400mb-model", "copies", Goal("value", "<=", 1.1)),
    Row("runtime/first-inference/100mb", "ms", Goal("value", "<=", 60.0)),
    Row("runtime/crash/next-good-reply", "ms", Goal("value", "<=", 100.0)),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model of the figure, packaged, with one request."""

    source: ModelSource
    archive: Path
    inputs_path: Path
    inputs: Tensors
    outputs: Mapping[str, TensorView]


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Returns a model in the size the issue names, and one request for it."""
    torch.manual_seed(0)
    match name:
        case "dlrm":
            model: torch.nn.Module = DLRM(num_tables=26, num_rows=1000, width=16)
            return model, {
                "dense": torch.rand(2, 13),
                "categories": torch.randint(0, 1000, (2, 26, 4)),
            }
        case "mobilenet":
            return MobileNetV3(1000), {"image": torch.rand(1, 3, 224, 224)}
        case _:
            model = BertEncoder(
                8000, width=384, num_layers=6, num_heads=6, max_length=128
            )
            return model, {
                "input_ids": torch.randint(1, 8000, (1, 128)),
                "attention_mask": torch.ones(1, 128, dtype=torch.int64),
            }


def make_subject(folder: Path, name: str) -> Subject:
    """Packages a model, with what it answers outside."""
    torch.set_num_threads(1)  # other kernels run, and round otherwise, with more
    model, tensors = build(name)
    with torch.inference_mode():
        plain = model.eval()(**tensors)
    named = plain if isinstance(plain, dict) else {"y": plain}
    signatures = {
        "serving_default": Signature(
            Method.PREDICT,
            {key: spec_of(tensor) for key, tensor in tensors.items()},
            {key: spec_of(tensor) for key, tensor in named.items()},
        )
    }
    source = package(folder, model, signatures, name)
    inputs_path = folder / f"{name}.inputs"
    torch.save(tensors, inputs_path)
    return Subject(
        source,
        Path(source.path) / "model.pt",
        inputs_path,
        {key: to_view(tensor) for key, tensor in tensors.items()},
        {key: to_view(tensor) for key, tensor in named.items()},
    )


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(DTYPE_OF[tensor.dtype], (-1, *tensor.shape[1:]))


class Requesters:
    """Closed-loop requesters on the serving loop, as the server's front end is one."""

    def __init__(
        self, loop: ServingLoop, model: InterpreterModel, inputs: Tensors
    ) -> None:
        self._loop = loop
        self._model = model
        self._inputs = inputs
        self._signature = model.source.signatures["serving_default"]
        self._num_rows = next(iter(inputs.values())).num_rows

    def run(self, num: int, duration_s: float) -> tuple[float, list[float]]:
        """Keeps ``num`` calls going; returns calls per second and latencies.

        As ``model_loop.measure`` does: each requester's first call fills the caches,
        and its last one counts with its time.
        """
        all_done = threading.Event()
        running = num

        def on_end() -> None:
            nonlocal running
            running -= 1
            if not running:
                all_done.set()

        requesters = [_Requester(self._submit, duration_s, on_end) for _ in range(num)]
        for requester in requesters:
            self._loop.post(requester.begin)
        if not all_done.wait(duration_s + 60):
            raise RuntimeError("requests without an answer")
        for requester in requesters:
            if requester.fault is not None:
                raise requester.fault
        rate = sum(requester.rate for requester in requesters)
        return rate, [each for one in requesters for each in one.latencies_s]

    def _submit(self, on_done: Callable[[Outcome], None]) -> None:
        self._model.submit(
            InferenceTask(
                "serving_default",
                self._signature,
                self._inputs,
                on_done,
                num_rows=self._num_rows,
            )
        )


class _Requester:
    """Sends the next request when the last one is answered. Loop-confined."""

    def __init__(
        self,
        submit: Callable[[Callable[[Outcome], None]], None],
        duration_s: float,
        on_end: Callable[[], None],
    ) -> None:
        self._submit = submit
        self._duration_s = duration_s
        self._on_end = on_end
        self._sent_s = 0.0
        self._begun_s: float | None = None
        self.latencies_s: list[float] = []
        self.rate = 0.0
        self.fault: ServingError | None = None

    def begin(self) -> None:
        """Sends a request."""
        self._sent_s = time.perf_counter()
        self._submit(self._on_done)

    def _on_done(self, outcome: Outcome) -> None:
        now_s = time.perf_counter()
        if isinstance(outcome, ServingError):
            self.fault = outcome
            self._on_end()
            return
        if self._begun_s is None:
            self._begun_s = now_s
        else:
            self.latencies_s.append(now_s - self._sent_s)
            taken_s = now_s - self._begun_s
            if taken_s >= self._duration_s:
                self.rate = len(self.latencies_s) / taken_s
                self._on_end()
                return
        self.begin()


@contextlib.contextmanager
def pool_of(
    host: ProcessHost, num: int, options: ProcessOptions
) -> Iterator[ProcessPool]:
    yield host.pool(options, num)
    host.close_pools()


def equals(model: InterpreterModel, subject: Subject, times: int) -> bool:
    """Whether every interpreter answers as the plain model does, bit for bit."""
    return all(
        ask(model, subject.inputs).outputs() == subject.outputs for _ in range(times)
    )


def measure_figure_5(report: Report) -> None:
    """Calls per second by model, configuration and number of requesters."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder, process_host() as host:
        for name in MODELS:
            subject = make_subject(Path(folder), name)
            for num in REQUESTERS:
                taken = _figure_5_point(report, host, subject, name, num)
                for configuration, series in taken.items():
                    curve = curves.setdefault(name, {}).setdefault(configuration, [])
                    curve.append((num, series.median))
    with contextlib.suppress(ModuleNotFoundError):
        write_panels(
            RESULTS / "runtime-figure-5.png",
            [
                Panel(
                    name,
                    PAPER_CLAIMS[name],
                    {CONFIGURATIONS[key]: points for key, points in drawn.items()},
                )
                for name, drawn in curves.items()
            ],
            title="Figure 5 of the paper, with processes for its interpreters",
            x_label="requesters",
            y_label="calls/s",
        )


def _figure_5_point(
    report: Report, host: ProcessHost, subject: Subject, name: str, num: int
) -> dict[str, Series]:
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(pool_of(host, num, ProcessOptions()))
        model = pool.load(subject.source)
        results_ok = equals(model, subject, 4 * num)
        requesters = Requesters(host.loop, model, subject.inputs)
        alone = [
            stack.enter_context(ModelLoop(subject.archive, subject.inputs_path))
            for _ in range(num)
        ]
        traced = stack.enter_context(
            ModelLoop(subject.archive, subject.inputs_path, "traced")
        )
        measurers: dict[str, Callable[[], Sample]] = {
            "ceiling": lambda: {"rate": run_loops(alone, 1, WINDOW_S)},
            "processes": lambda: {"rate": requesters.run(num, WINDOW_S)[0]},
            "global": lambda: {"rate": run_loops(alone[:1], num, WINDOW_S)},
            "torchscript": lambda: {"rate": run_loops([traced], num, WINDOW_S)},
        }
        runs = interleave(measurers, num_rounds=FIGURE_ROUNDS)
    rates = {key: quantities["rate"] for key, quantities in runs.items()}
    what = f"runtime/{name}-{num}"
    report.record(
        f"{what}/vs-global-interpreter",
        rates["processes"],
        rates["global"],
        results_ok=results_ok,
    )
    report.record(
        f"{what}/vs-ceiling",
        rates["processes"],
        rates["ceiling"],
        results_ok=results_ok,
    )
    report.record(f"{what}/torchscript", rates["torchscript"])
    return rates


def measure_call_cost(report: Report) -> None:
    """The median call of a no-op model, less the direct call's."""
    sizes = {"4kb": 1024, "600kb": 150 * 1024}
    with tempfile.TemporaryDirectory() as folder, process_host() as host:
        for size, num_floats in sizes.items():
            x = torch.rand(1, num_floats)
            signatures = {
                "serving_default": signature(
                    {"y": TensorSpec(FLOAT32, (-1, 1))},
                    {"x": TensorSpec(FLOAT32, (-1, num_floats))},
                )
            }
            model = zoo.First()
            source = package(Path(folder), model, signatures, f"echo-{size}")
            inputs = {"x": to_view(x)}
            subjects: dict[str, Callable[[], Sample]] = {}
            for kind, spin_us in (("process", 0), ("process-spinning", 200)):
                options = ProcessOptions(worker=WorkerOptions(spin_us=spin_us))
                loaded = host.pool(options).load(source)
                requesters = Requesters(host.loop, loaded, inputs)

                def measured(requesters: Requesters = requesters) -> Sample:
                    return {"us": statistics.median(requesters.run(1, 0.3)[1]) * 1e6}

                answer = ask(loaded, inputs).outputs()["y"]
                if answer != to_view(x[:, :1]):
                    raise RuntimeError("the echo is wrong")
                subjects[kind] = measured
            subjects["direct"] = functools.partial(_direct, model, x)
            runs = interleave(subjects, num_rounds=ROUNDS)
            direct_us = runs["direct"]["us"].median
            for kind in ("process-spinning", "process"):
                costs = [us - direct_us for us in runs[kind]["us"].samples]
                report.record(f"runtime/call-cost-{size}/{kind}", Series(tuple(costs)))
            host.close_pools()


def measure_private_pythons(report: Report) -> None:
    """The rows of backend dlmopen; last, because its memory stays."""
    private_pythons.measure_extra(report)
    with tempfile.TemporaryDirectory() as folder:
        for size, num_floats in (("4kb", 1024), ("600kb", 150 * 1024)):
            x = torch.rand(1, num_floats)
            signatures = {
                "serving_default": signature(
                    {"y": TensorSpec(FLOAT32, (-1, 1))},
                    {"x": TensorSpec(FLOAT32, (-1, num_floats))},
                )
            }
            model = zoo.First()
            private_pythons.measure_cost(
                report,
                size,
                package(Path(folder), model, signatures, f"echo-{size}"),
                {"x": to_view(x)},
                {"y": to_view(x[:, :1])},
                functools.partial(_direct, model, x),
            )
        subject = make_subject(Path(folder), "dlrm")
        with contextlib.ExitStack() as stack:
            loops = [
                stack.enter_context(ModelLoop(subject.archive, subject.inputs_path))
                for _ in private_pythons.REQUESTERS
            ]
            private_pythons.measure_figure(
                report,
                "dlrm",
                subject.source,
                subject.inputs,
                dict(subject.outputs),
                loops,
            )


def _direct(model: torch.nn.Module, x: torch.Tensor) -> Sample:
    times_s = []
    with torch.inference_mode():
        for _ in range(2000):
            begun_s = time.perf_counter()
            model(x=x)
            times_s.append(time.perf_counter() - begun_s)
    return {"us": statistics.median(times_s) * 1e6}


# Whoever kills it again and again must not have it quarantined or kept waiting.
PATIENT = ProcessOptions(crashes=CrashPolicy(max_crashes=1000, max_delay_s=0.0))


def measure_extra_interpreter(report: Report) -> None:
    """Memory and start of one interpreter more, and where a 400 MB model is."""
    with tempfile.TemporaryDirectory() as folder, process_host() as host:
        subject = make_subject(Path(folder), "dlrm")
        ok = True
        private_mb, ready_ms = [], []
        for number in range(ROUNDS):
            extra = Worker(
                f"extra-{number}", host.loop, host.zygote, ProcessOptions(), None
            )
            model = host.pool().load(subject.source)  # the zygote runs by then
            begun_s = time.perf_counter()
            extra.ready().result(120.0)
            ready_ms.append((time.perf_counter() - begun_s) * 1e3)
            ok = ok and equals(model, subject, 1)
            private_mb.append(_memory(model.pid, "Private_") / 1e6)
            host.on_loop(extra.close)
        report.record(
            "runtime/extra-interpreter/private",
            Series(tuple(private_mb)),
            results_ok=ok,
        )
        report.record("runtime/extra-interpreter/ready", Series(tuple(ready_ms)))
        host.close_pools()
        large = package(
            Path(folder),
            zoo.Weighted(100 << 20),
            {"serving_default": signature(), "total": signature()},
            "large",
        )
        size_bytes = 400 << 20
        model = host.pool(num_processes=3).load(large)
        model.rehearse("total", {"x": floats((1, 2))}, 60.0)
        pss_bytes = sum(_memory(pid, "Pss:", "model.pt") for pid in model.pids)
        report.record("runtime/extra-interpreter/400mb-model", pss_bytes / size_bytes)


def _memory(pid: int, kind: str, mapping: str = "") -> int:
    """Returns a worker's memory of a kind, of one mapping or all, in bytes."""
    total, inside = 0, not mapping
    with open(f"/proc/{pid}/smaps") as smaps:
        for line in smaps:
            key = line.split(maxsplit=1)[0]
            if "-" in key:
                inside = mapping in line
            elif inside and key.startswith(kind):
                total += int(line.split()[1]) << 10
    return total


def measure_first_inference(report: Report) -> None:
    """From nothing but a staged 100 MB model to the first answer of a fresh process."""
    with tempfile.TemporaryDirectory() as folder, process_host() as host:
        source = package(
            Path(folder),
            zoo.Weighted(25 << 20),
            {"serving_default": signature()},
            "100mb",
        )
        model = host.pool(PATIENT).load(source)
        times_ms = []
        for _ in range(ROUNDS):
            pid = pid_of(model)
            os.kill(pid, 9)
            until(lambda p=pid: model.pid != p, "the death")  # type: ignore[misc]
            begun_s = time.perf_counter()
            ask(model, {"x": floats((1, 2))}).outputs()
            times_ms.append((time.perf_counter() - begun_s) * 1e3)
        report.record("runtime/first-inference/100mb", Series(tuple(times_ms)))


def measure_crash(report: Report) -> None:
    """From the crash of a call to a worker with its model, and to a good reply."""
    with tempfile.TemporaryDirectory() as folder, process_host() as host:
        source = package(Path(folder), zoo.Scale())
        back_ms, reply_ms = [], []
        for _ in range(ROUNDS):
            model = host.pool().load(source)
            ask(model, {"x": floats((1, 2))}).outputs()
            reply_ms.append(_crash_to_reply_ms(model))
            pid = pid_of(model)
            begun_s = time.perf_counter()
            os.kill(pid, 9)
            wait_for_successor(model, pid)
            back_ms.append((time.perf_counter() - begun_s) * 1e3)
            host.close_pools()
        report.record("runtime/crash/worker-back", Series(tuple(back_ms)))
        report.record("runtime/crash/next-good-reply", Series(tuple(reply_ms)))


def _crash_to_reply_ms(model: InterpreterModel) -> float:
    crash = ask(model, {"x": floats((-1, 0))}, "crash")
    begun_s = time.perf_counter()
    good = ask(model, {"x": floats((1, 2))})
    good.outputs()
    reply_ms = (time.perf_counter() - begun_s) * 1e3
    crash.error()
    return reply_ms


def measure_load(report: Report) -> None:
    """What loading 500 MB does to another model, and what unloading gives back."""
    size_bytes = 500 << 20
    with tempfile.TemporaryDirectory() as folder, process_host() as host:
        subject = make_subject(Path(folder), "mobilenet")
        served = host.pool().load(subject.source)
        requesters = Requesters(host.loop, served, subject.inputs)
        source = package(
            Path(folder),
            zoo.Weighted(size_bytes // 4),
            {"serving_default": signature(), "total": signature()},
            "500mb",
        )
        requesters.run(1, 1.0)
        quiet_us, loading_us, shares = [], [], []
        for _ in range(ROUNDS):
            quiet_us.append(_p99_us(requesters.run(1, 2.0)[1]))
            before_bytes = _held_bytes()
            loader = _Loading(host.pool(), source)
            loading_us.append(_p99_us(requesters.run(1, 2.0)[1]))
            model = loader.finish()
            ask(model, {"x": floats((1, 2))}, "total").outputs()
            held_bytes = _held_bytes() - before_bytes
            pid = model.pid
            model.unload()
            until(lambda p=pid: not Path(f"/proc/{p}/maps").exists(), "the end")  # type: ignore[misc]
            kept_bytes = _held_bytes() - before_bytes
            shares.append(1 - kept_bytes / held_bytes)
        report.record(
            "runtime/load-500mb/p99-of-others",
            Series(tuple(loading_us)),
            Series(tuple(quiet_us)),
        )
        report.record("runtime/unload/memory-returned", Series(tuple(shares)))


class _Loading(threading.Thread):
    """Loads on a thread, as the server's load pool does."""

    def __init__(self, pool: ProcessPool, source: ModelSource) -> None:
        super().__init__(daemon=True)
        self._pool = pool
        self._source = source
        self._model: ProcessModel | None = None
        self.start()

    def run(self) -> None:
        self._model = self._pool.load(self._source)

    def finish(self) -> ProcessModel:
        self.join(60)
        assert self._model is not None
        return self._model


def _p99_us(latencies_s: list[float]) -> float:
    return statistics.quantiles(latencies_s, n=100)[98] * 1e6


def _held_bytes() -> int:
    """Returns what this process and its children have for themselves, and all memfds.

    A memfd belongs to no process; those of others on this machine count too.
    """
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().uss
    with open("/proc/meminfo") as meminfo:
        for line in meminfo:
            if line.startswith("Shmem:"):
                total += int(line.split()[1]) << 10
    return total


AREA = Area(
    "runtime",
    ROWS,
    (
        measure_call_cost,
        measure_extra_interpreter,
        measure_first_inference,
        measure_crash,
        measure_load,
        measure_figure_5,
        compiled.measure_compiled,
        measure_private_pythons,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(AREA))
