"""A program with one process of every kind, for tests that kill them.

    python -m tests.runtime.process.family_host FOLDER GRAPH

FOLDER takes versions, GRAPH is the folder of one with a graph. It prints a line of JSON
for each line it reads: ``pids`` by role, null for who is not there, the answers of both
models for ``ask``, nothing but ``{}`` for the name of a method that never returns.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import process_host
from tests.runtime.zoo import Large, Spawner
from tfs.core.dtype import INT64
from tfs.core.servable_id import ServableId
from tfs.core.signature import TensorSpec
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process import spare_worker
from tfs.runtime.process.crash_policy import CrashPolicy
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_pool import ProcessPool
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.worker_state import WorkerState

X = {"x": floats((1, 2))}
STUBBORN = {
    "serving_default": signature({"y": TensorSpec(INT64, (-1, 2))}),
    "lasting": signature({"y": TensorSpec(INT64, (-1, 2))}),
    "stubborn": signature(),
    "bare": signature(),
}
PATIENT = ProcessOptions(crashes=CrashPolicy(max_crashes=1000, max_delay_s=0.0))


def graph_in(folder: Path) -> ModelSource:
    """Returns the version whose graph lies there."""
    return ModelSource(
        ServableId("graph", 1),
        str(folder),
        "torch_export",
        {},
        {"serving_default": signature()},
    )


def pid_of(interpreter: ProcessInterpreter) -> int | None:
    """Returns the worker that answers calls, None while there is none."""
    return interpreter.pid if interpreter.state is WorkerState.READY else None


def main(folder: Path, graph: Path) -> None:
    """Runs until its input ends."""
    # Not to wait for what is put off while other things happen.
    vars(spare_worker)["_QUIET_S"] = 0.01
    with process_host() as host:
        loop, zygote = host.loop, host.zygote
        spare = SpareWorker(loop, zygote, WorkerOptions())
        plain, of_graph, stubborn = (host.interpreter(PATIENT, spare) for _ in range(3))
        large = package(folder, Large(1 << 20), {"serving_default": signature()})
        shared = plain.load(large)
        pool = ProcessPool("graph", [of_graph], PATIENT)
        graphs = pool.load(graph_in(graph))
        spawner = stubborn.load(package(folder, Spawner(), STUBBORN, name="spawner"))

        def pids() -> dict[str, int | None]:
            return {
                "zygote": zygote.pid,
                "spare": spare.pid,
                "worker": pid_of(plain),
                "graph worker": pid_of(of_graph),
                "stubborn worker": pid_of(stubborn),
            }

        for line in sys.stdin:
            answer: object = {}
            match line.strip():
                case "pids":
                    answer = pids()
                case "ask":
                    answer = [
                        values(ask(each, X).outputs()["y"]) for each in (shared, graphs)
                    ]
                case name:
                    ask(spawner, X, name)
            print(json.dumps(answer), flush=True)
        host.on_loop(spare.close)
        host.close_interpreters()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
