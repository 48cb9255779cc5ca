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
from tests.runtime.process_host import process_host, ready_pid
from tests.runtime.zoo import Large, Spawner
from tfs.core.dtype import INT64
from tfs.core.servable_id import ServableId
from tfs.core.signature import TensorSpec
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.process.crash_policy import CrashPolicy
from tfs.runtime.process.process_options import ProcessOptions

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


def main(folder: Path, graph: Path) -> None:
    """Runs until its input ends."""
    with process_host() as host:
        large = package(folder, Large(1 << 20), {"serving_default": signature()})
        shared = host.pool(PATIENT).load(large)
        graphs = host.pool(PATIENT).load(graph_in(graph))
        stubborn = package(folder, Spawner(), STUBBORN, name="spawner")
        spawner = host.pool(PATIENT).load(stubborn)

        def pids() -> dict[str, int | None]:
            return {
                "zygote": host.zygote.pid,
                "worker": ready_pid(shared),
                "graph worker": ready_pid(graphs),
                "stubborn worker": ready_pid(spawner),
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


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
