"""Part of the runtime area: private CPythons in this process, backend dlmopen.

Callers bring their threads, as in the paper: a requester is a thread that calls its
interpreter itself. What the server adds, the way over the interpreter's thread and back
to the serving loop, is a row of its own.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.benchmarks.harness import Report, Sample, interleave
from tests.benchmarks.model_loop import ModelLoop, run_loops
from tests.benchmarks.row import Goal, Row, Series
from tfs.core.errors import ServingError
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.dlmopen.dlmopen_interpreter import DlmopenInterpreter
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.inline.inline_model import InlineModel

WINDOW_S = 0.4
CALL_WINDOW_S = 0.3
REQUESTERS = (1, 2)

_LACKING = dlmopen_probe.lacking() or None
"""What this host lacks; what only a test can tell ends the run with its reason."""


def figure_rows(model: str, num: int, goal: Goal | None) -> Iterator[Row]:
    """Returns the rows of one model in the paper's figure."""
    if num in REQUESTERS:
        yield Row(
            f"runtime/{model}-{num}/dlmopen-vs-ceiling",
            "calls/s",
            goal,
            lacking=_LACKING,
        )


ROWS = (
    Row(
        "runtime/call-cost-4kb/dlmopen",
        "us",
        Goal("value", "<=", 30.0),
        lacking=_LACKING,
    ),
    Row("runtime/call-cost-4kb/dlmopen-from-loop", "us", lacking=_LACKING),
    Row("runtime/call-cost-600kb/dlmopen", "us", lacking=_LACKING),
    Row("runtime/extra-dlmopen/private", "MB", lacking=_LACKING),
    Row("runtime/extra-dlmopen/ready", "ms", lacking=_LACKING),
)


@contextlib.contextmanager
def private_pythons(num: int) -> Iterator[list[DlmopenInterpreter]]:
    """Interpreters that are ready to load."""
    dlmopen_probe.require(num)
    interpreters = [DlmopenInterpreter(f"dlmopen-{index}") for index in range(num)]
    for interpreter in interpreters:
        interpreter.namespace()
    yield interpreters
    for interpreter in interpreters:
        interpreter.close(time.monotonic() + 30)


def measure_extra(report: Report) -> None:
    """Memory and start of a private CPython beside the first, torch imported."""
    if _LACKING is not None:
        return
    with private_pythons(1):
        before_bytes, begun_s = _private_bytes(), time.perf_counter()
        with private_pythons(1):
            ready_ms = (time.perf_counter() - begun_s) * 1e3
            report.record(
                "runtime/extra-dlmopen/private",
                (_private_bytes() - before_bytes) / 1e6,
            )
            report.record("runtime/extra-dlmopen/ready", ready_ms)


def measure_cost(
    report: Report,
    size: str,
    source: ModelSource,
    inputs: Tensors,
    expected: dict[str, TensorView],
    direct: Callable[[], Sample],
) -> None:
    """The median call of a no-op model, less the direct call's."""
    if _LACKING is not None:
        return
    loop = ServingLoop(name="benchmark-loop")
    loop.start()
    with private_pythons(1) as (interpreter,):
        model = interpreter.load(source)
        if _answer(model, inputs) != expected:
            raise RuntimeError("the echo is wrong")
        runs = interleave(
            {
                "dlmopen": lambda: _median(call_often([model], inputs, CALL_WINDOW_S)),
                "dlmopen-from-loop": lambda: _median(
                    _from_loop(loop, model, inputs, CALL_WINDOW_S)
                ),
                "direct": direct,
            },
            num_rounds=5,
        )
    loop.close(time.monotonic() + 30)
    direct_us = runs["direct"]["us"].median
    for kind in ("dlmopen", "dlmopen-from-loop") if size == "4kb" else ("dlmopen",):
        costs = [us - direct_us for us in runs[kind]["us"].samples]
        report.record(f"runtime/call-cost-{size}/{kind}", Series(tuple(costs)))


def measure_figure(
    report: Report,
    model: str,
    source: ModelSource,
    inputs: Tensors,
    expected: dict[str, TensorView],
    loops: Sequence[ModelLoop],
) -> None:
    """Calls per second of as many requesters as interpreters, beside the ceiling."""
    if _LACKING is not None:
        return
    with private_pythons(max(REQUESTERS)) as interpreters:
        models = [each.load(source) for each in interpreters]
        ok = all(_answer(each, inputs) == expected for each in models for _ in range(4))
        for num in REQUESTERS:
            runs = interleave(
                {
                    "dlmopen": lambda num=num: _rate(  # type: ignore[misc]
                        call_often(models[:num], inputs, WINDOW_S)
                    ),
                    "ceiling": lambda num=num: {  # type: ignore[misc]
                        "rate": run_loops(list(loops[:num]), 1, WINDOW_S)
                    },
                },
                num_rounds=7,
            )
            report.record(
                f"runtime/{model}-{num}/dlmopen-vs-ceiling",
                runs["dlmopen"]["rate"],
                runs["ceiling"]["rate"],
                results_ok=ok,
            )


def _answer(model: InlineModel, inputs: Tensors) -> Tensors:
    """Calls a model on this thread, past the interpreter's queue."""
    assert model.guest is not None
    return model.guest.call("serving_default", inputs)


def call_often(
    models: Sequence[InlineModel], inputs: Tensors, duration_s: float
) -> list[float]:
    """Calls each model from a thread of its own; returns the latencies of all."""
    latencies_s: list[list[float]] = [[] for _ in models]
    begin = threading.Barrier(len(models))

    def work(model: InlineModel, own_s: list[float]) -> None:
        now = time.perf_counter
        _answer(model, inputs)
        begin.wait()
        started_s = now()
        limit_s = started_s + duration_s
        while started_s < limit_s:
            _answer(model, inputs)
            ended_s = now()
            own_s.append(ended_s - started_s)
            started_s = ended_s

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in zip(models, latencies_s, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for own_s in latencies_s for each in own_s]


def _from_loop(
    loop: ServingLoop, model: InlineModel, inputs: Tensors, duration_s: float
) -> list[float]:
    """Calls from a serving loop and takes each answer there, one after the other."""
    latencies_s: list[float] = []
    faults: list[ServingError] = []
    done = threading.Event()
    signature = model.source.signatures["serving_default"]
    now = time.perf_counter
    limit_s = now() + duration_s

    def begin() -> None:
        begun_s = now()
        if begun_s >= limit_s or faults:
            done.set()
            return

        def finish(outcome: Outcome) -> None:
            latencies_s.append(now() - begun_s)
            if isinstance(outcome, ServingError):
                faults.append(outcome)
            begin()

        task = InferenceTask(
            "serving_default",
            signature,
            inputs,
            lambda outcome: loop.post(lambda: finish(outcome)),
        )
        model.submit(task)

    loop.post(begin)
    if not done.wait(duration_s + 60):
        raise RuntimeError("requests without an answer")
    if faults:
        raise faults[0]
    return latencies_s


def _median(latencies_s: list[float]) -> Sample:
    return {"us": statistics.median(latencies_s) * 1e6}


def _rate(latencies_s: list[float]) -> Sample:
    return {"rate": len(latencies_s) / WINDOW_S}


def _private_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) << 10
    return 0
